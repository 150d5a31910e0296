"""A row of the table, measured: both figures, how far they are apart, and whether that is within its tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hftune.tools.parity.models import Figures
from hftune.tools.parity.rows import ByHand, Known, Row
from hftune.tools.parity.runs import Lab, Run, RunFailed

BF16 = 2e-2
"""Of a GPU, where runs compute in bf16: at least this."""
_FLOOR = 1e-2
"""Differences of smaller figures are measured against this: RL's first loss is 0, give or take rounding."""


@dataclass(frozen=True)
class Outcome:
    """What came of a row.

    Args:
        tolerance: On this machine.
        found, wanted: The figures of the step in which they are furthest apart.
        difference: Relative.
        at: Which figure, and of which step.
        problem: Why there is nothing to compare; empty where there is.
        left_out: Whether this machine cannot run it.
    """

    row: Row
    tolerance: float
    found: float = math.nan
    wanted: float = math.nan
    difference: float = math.inf
    at: str = ""
    problem: str = ""
    left_out: bool = field(default=False)

    @property
    def holds(self) -> bool:
        """Whether both sides agree."""
        return not self.problem and self.difference <= self.tolerance


def measure(row: Row, lab: Lab) -> Outcome:
    """Run what the row needs, and compare."""
    tolerance = max(row.tolerance, BF16) if lab.gpus else row.tolerance
    needed = max(run.processes for run in runs_of(row))
    if lab.gpus and needed > lab.gpus:
        return Outcome(row, tolerance, problem=f"needs {needed} GPUs", left_out=True)
    if lab.gpus and row.found.stage == "rl" and isinstance(row.wanted, ByHand):
        return Outcome(row, tolerance, problem="a GPU draws other answers than the processor beside it", left_out=True)
    try:
        found, wanted = lab.figures(row.found), _wanted(row, lab)
    except RunFailed as failed:
        return Outcome(row, tolerance, problem=str(failed))
    return compared(row, tolerance, found, wanted)


def runs_of(row: Row) -> list[Run]:
    """All runs that a row rests upon."""
    first = [row.found, *([row.wanted] if isinstance(row.wanted, Run) else [])]
    first += [row.wanted.run] if isinstance(row.wanted, ByHand) and row.wanted.begun else []
    return [*first, *(run.after for run in first if run.after is not None)]


def _wanted(row: Row, lab: Lab) -> Figures:
    if isinstance(row.wanted, Run):
        return lab.figures(row.wanted)
    if isinstance(row.wanted, Known):
        return {name: list(row.wanted.values) for name in row.figures}
    by = row.wanted
    return lab.by_hand(by.name, by.run, by.asked, begun=by.begun)


def compared(row: Row, tolerance: float, found: Figures, wanted: Figures) -> Outcome:
    """The step and figure that are furthest apart."""
    worst = Outcome(row, tolerance, difference=-1.0)
    for name in row.figures:
        ours, theirs = found.get(name, []), wanted.get(name, [])
        if not ours or len(ours) != len(theirs):
            return Outcome(row, tolerance, problem=f"{len(ours)} and {len(theirs)} values of {name}")
        if name == "grad_norm" and not max(map(abs, theirs)) > 0:
            return Outcome(row, tolerance, problem="nothing is trained: every gradient is 0")
        for step, (one, other) in enumerate(zip(ours, theirs, strict=True), start=1):
            apart = distance(one, other)
            if apart > worst.difference:
                worst = Outcome(row, tolerance, one, other, apart, f"{name}, step {step}")
    return worst


def distance(one: float, other: float) -> float:
    """|one - other| relative to the larger of them; infinite where one is NaN."""
    if not math.isfinite(one - other):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), _FLOOR)
