"""What the board knows: the runs of its folders, as they are now, and its pipelines."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from hftune.tools.board.pipelines import Pipelines
from hftune.tools.watching.runs import Runs, Watched

_FRESH = 0.5
"""Seconds in which what was read counts: parts of a page ask together."""


class Found:
    """Runs and pipelines.

    Args:
        folders: Those that were given; what the form writes goes below the first one.
        files: Pipeline files that were given.
    """

    def __init__(self, folders: Sequence[Path], files: Sequence[Path]) -> None:
        self._runs, self._read = Runs(folders), -1.0
        self.tops = self._runs.tops
        self.pipelines = Pipelines(self.tops[0], files)
        self._known: list[Watched] = []

    def runs(self) -> list[Watched]:
        """All runs, the one that was written last first."""
        if time.monotonic() - self._read > _FRESH:
            self._known = self._runs.read()[::-1]
            self._read = time.monotonic()
        return self._known

    def run(self, asked: str) -> Watched:
        """The run of a number.

        Raises:
            LookupError: There is none.
        """
        for run in self.runs():
            if number(run.folder) == asked:
                return run
        raise LookupError(asked)

    def name(self, run: Watched) -> str:
        """A run's name: with its folder's before it where several folders are watched."""
        return run.name if len(self.tops) == 1 or run.folder == run.top else f"{run.top.name}/{run.name}"


def number(place: Path) -> str:
    """The number of a folder or file in an address."""
    return hashlib.sha256(str(place).encode(errors="surrogateescape")).hexdigest()[:16]
