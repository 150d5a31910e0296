"""Which layers of a miniature are recomputed, and how: what the arguments ask for, and what a plan may ask for instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.arguments import StageArguments
from hftune.preflight.planning.miniature import Miniature

NONE = "none"
FULL = "full"


@dataclass(frozen=True)
class Recompute:
    """What the backward pass computes again.

    Args:
        mode: `NONE` or `FULL`.
        every: One of this many layers.
        reentrant: With torch's older kind of checkpoint, as adapters under ZeRO-3 need.
    """

    mode: str = FULL
    every: int = 1
    reentrant: bool = False

    def marks(self, count: int) -> list[bool]:
        """Whether each of so many layers is recomputed."""
        return [self.mode != NONE and number % self.every == 0 for number in range(count)]


def asked(training_args: StageArguments, *, adapted: bool) -> Recompute:
    """What the arguments say; adapters under ZeRO-3 need the older kind of checkpoint."""
    options: dict[str, Any] = dict(training_args.gradient_checkpointing_kwargs or {})
    older = adapted and training_args.zero_stage == 3
    return Recompute(
        mode=FULL if training_args.gradient_checkpointing else NONE,
        every=int(options.get("every_n_layers", 1)),
        reentrant=older or bool(options.get("use_reentrant", False)),
    )


def switch_on(miniature: Miniature, recompute: Recompute, marks: list[bool]) -> None:
    """Let the layers of a miniature be recomputed like those of the whole model.

    Args:
        marks: One for each layer of the whole model.
    """
    if not any(marks):
        return
    miniature.model.gradient_checkpointing_enable({"use_reentrant": recompute.reentrant})
    for place, layer in enumerate(miniature.layers):
        layer.gradient_checkpointing = marks[miniature.kinds.index(place)]  # type: ignore[assignment]
