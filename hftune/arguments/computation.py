"""What changes how the model computes: FP8, tiles of long rows, dropout, and the losses of routers."""

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


@dataclass
class RouterFields:
    """Losses of a mixture of experts' routers. `router_aux_loss_coef` is TRL's name."""

    # None is not 0: the weight in the model's config counts then.
    router_aux_loss_coef: float | None = field(
        default=None,
        metadata={
            "help": "Weight of the routers' load-balancing loss (arXiv:2101.03961). Left out: what the model's config "
            "says, 0 where it says nothing."
        },
    )
    moe_z_loss_coef: float = field(
        default=0.0,
        metadata={"help": "Weight of the routers' z-loss (arXiv:2202.08906), a mean over tokens and layers."},
    )


@dataclass
class DropoutFields:
    """Dropout on ERNIEKit's names, whatever the model's config calls it."""

    hidden_dropout_prob: float | None = field(
        default=None,
        metadata={
            "help": "Dropout on what attention and MLP add to the hidden states. Left out: as the model's config says."
        },
    )
    attention_probs_dropout_prob: float | None = field(
        default=None, metadata={"help": "Dropout on attention weights. Left out: as the model's config says."}
    )
    dropout_warmup_steps: int = field(
        default=0, metadata={"help": "Steps in which both grow from 0 to their values, linearly."}
    )
    layerwise_dropout: bool = field(
        default=False,
        metadata={"help": "Scale both by a layer's number (from 0) over the count of layers, as ERNIEKit does."},
    )

    @property
    def asks_for_dropout(self) -> bool:
        """Whether a dropout other than the model's own was asked for."""
        return self.hidden_dropout_prob is not None or self.attention_probs_dropout_prob is not None
