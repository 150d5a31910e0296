"""What a row of the table says."""

from __future__ import annotations

from dataclasses import dataclass

from hftune.tools.parity.runs import Run

ROUNDING = 1e-4
"""Sums in another order, in float32, grown over the steps."""
BITS = 0.0
STEP = ("loss", "grad_norm")


@dataclass(frozen=True)
class ByHand:
    """What a function of `plain.BY_HAND` finds.

    Args:
        run: Whose model, or with `begun` whose saved weights, and whose records it takes.
        asked: Which loss.
    """

    name: str
    run: Run
    asked: str = ""
    begun: bool = False


@dataclass(frozen=True)
class Known:
    """Values that a formula gives."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One equality.

    Args:
        group: The heading that it stands under.
        what: In words: this equals that.
        tolerance: Of the greatest relative difference; 0: every bit.
        upstream: The issue of the library because of which it does not hold.
    """

    group: str
    what: str
    found: Run
    wanted: Run | ByHand | Known
    tolerance: float = ROUNDING
    figures: tuple[str, ...] = STEP
    upstream: str = ""
