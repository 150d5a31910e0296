"""What this process is doing: written by trainers, read by the watchdog's thread.

Entering a phase stores one small object: no lock, no system call, well below a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

PREPARATION = "preparation"
DATA, FORWARD, BACKWARD, OPTIMIZER = "waiting for data", "forward", "backward", "optimizer step"
SAVE, EVALUATION, REWARDS = "save", "evaluation", "rewards"
PROMPTS, GENERATION, OLD, REFERENCE = "prompts", "generation", "old log-probabilities", "reference"


@dataclass(frozen=True)
class Phase:
    """What a process is doing, and since when.

    Attributes:
        name: One of the words above.
        step: Optimizer steps that are done.
        count: Phases entered so far: processes that do the same work count alike, so the lowest count is behind.
        since: Seconds of `time.monotonic`.
        timed: Whether it may be called a hang; reading and tokenising before training may take hours.
    """

    name: str = PREPARATION
    step: int = 0
    count: int = 0
    since: float = 0.0
    timed: bool = False

    @property
    def seconds(self) -> float:
        """Seconds since the phase began."""
        return time.monotonic() - self.since


_now = Phase(since=time.monotonic())

_entered = time.monotonic()  # unlike `since`, whatever shows that the phase makes progress
_seconds: dict[str, float] = {}


def now() -> Phase:
    """The phase of this process."""
    return _now


def enter(name: str, step: int | None = None) -> None:
    """Begin another phase, or the same one again, which shows that the process moves.

    Args:
        step: Optimizer steps that are done; left out: as many as before.
    """
    global _now, _entered
    before, now_ = _now, time.monotonic()
    _seconds[before.name] = _seconds.get(before.name, 0.0) + now_ - _entered
    _entered = now_
    # One assignment of a frozen object: the watchdog's thread sees the old phase or the new one, never a mixture.
    _now = Phase(name, before.step if step is None else step, before.count + 1, now_, before.timed)


def take_seconds() -> dict[str, float]:
    """Seconds spent in each phase since the last time, the one at hand included."""
    global _entered
    now_ = time.monotonic()
    taken = dict(_seconds)
    taken[_now.name] = taken.get(_now.name, 0.0) + now_ - _entered
    _entered = now_
    _seconds.clear()
    return taken


def keep_alive() -> None:
    """Restart the clock of the phase: it is the same one, and it makes progress.

    It does not count as another phase: how often this is called may differ between processes.
    """
    global _now
    _now = replace(_now, since=time.monotonic())


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Let phases in the block be called a hang; afterwards, also after an error, no longer."""
    global _now
    before = _now
    # A phase of its own, so that time spent before is not counted.
    _now = Phase(name, before.step, before.count + 1, time.monotonic(), timed=True)
    try:
        yield
    finally:
        _now = replace(_now, timed=before.timed)  # the name stays: an error is told with where it happened
