"""What makes long rows fit into memory besides recomputing activations."""

from __future__ import annotations

from dataclasses import dataclass, field


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
