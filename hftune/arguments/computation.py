"""How matrices are multiplied: below 16 bits, and a tile of a long row at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.errors import ArgumentError

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
"""torchao's names: one scale a tensor (E4M3 forward, E5M2 for gradients); one a row; the same, with the gradient of the
weights in bf16."""


@dataclass
class PrecisionFields:
    """FP8 of training in full. A frozen base in 8 or 4 bits is `load_in_8bit` and `load_in_4bit`."""

    fp8: str | None = field(
        default=None,
        metadata={
            "help": "Multiply the linear layers' matrices in FP8 (torchao, a GPU of compute capability 8.9 or later, "
            f"training in full in bf16): {', '.join(RECIPES)}. --torch_compile True makes it pay."
        },
    )

    train_in_float32: bool = field(
        default=False,
        metadata={
            "help": "Keep what is trained in float32 whatever --dtype says, a reward model's head too. Under "
            "DeepSpeed it is so anyway, in the optimizer's copies."
        },
    )

    def check_precision(self) -> None:
        """Refuse a recipe that torchao does not have.

        Raises:
            ArgumentError: It is none of `RECIPES`.
        """
        if self.fp8 is not None and self.fp8 not in RECIPES:
            raise ArgumentError(f"{self.fp8!r} is no recipe of FP8", place="--fp8", fix=f"use {', '.join(RECIPES)}")


@dataclass
class TilingFields:
    """Mixed into every stage's arguments."""

    tiled_mlp: bool = field(
        default=False,
        metadata={
            "help": "Compute each MLP a piece of the row at a time and recompute it in the backward pass, so that the "
            "widest activations are never there for a whole row. PT and SFT; for long rows."
        },
    )
