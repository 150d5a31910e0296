"""What makes long rows fit into memory besides recomputing activations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any


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
class TiledLossFields:
    """Mixed into the arguments of pre-training."""

    tiled_loss: bool | None = field(
        default=None,
        metadata={
            "help": "Compute the loss a few labels at a time, without the logits of a whole batch. Left out: with "
            "--sequence_parallel_size. Fine-tuning always does."
        },
    )

    if TYPE_CHECKING:  # what the arguments beside this class bring

        def __getattr__(self, name: str) -> Any: ...

    @property
    def tiles_loss(self) -> bool:
        """Whether the loss is computed in pieces."""
        return bool(self.sequence_parallel_size > 1 if self.tiled_loss is None else self.tiled_loss)
