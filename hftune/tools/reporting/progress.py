"""What a run has logged, read from `progress.jsonl` as it grows.

Board, watch, report and pipeline all read it here.
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hftune.errors import ManifestError
from hftune.opening.files import open_file
from hftune.opening.json_file import parse_json
from hftune.visible import clock, progress_figures

PROGRESS = "progress.jsonl"
Line = dict[str, Any]
"""Names and finite or infinite numbers of a log; `step` and `time` are always there."""

_MOST = 2000
"""Lines that are kept: of more, every other one goes."""
_WINDOW = 20


@dataclass
class Moment:
    """How far a run is; None for what is not known.

    Args:
        figures: What was logged last of each name.
    """

    step: int = 0
    max_steps: int = 0
    seconds_left: float | None = None
    figures: Line = field(default_factory=dict)

    def __str__(self) -> str:
        steps = [f"step {self.step}/{self.max_steps}"] if self.max_steps else []
        left = [f"{clock(self.seconds_left)} left"] if self.seconds_left is not None else []
        return ", ".join([*steps, *progress_figures(self.figures, left)])


class Log:
    """Follows `progress.jsonl` of a folder.

    Args:
        skip: Leave out what is in the file now, of an earlier run.

    Attributes:
        lines: Those of the file, numbers only.
        written: When the file was last written, in seconds since the epoch; None without a file.
    """

    def __init__(self, folder: Path, *, skip: bool = False) -> None:
        self.file = folder / PROGRESS
        self._forget()
        if skip:
            with suppress(OSError):
                about = os.stat(self.file)
                self._inode, self._offset = about.st_ino, about.st_size

    def _forget(self) -> None:
        self.lines: list[Line] = []
        self.written: float | None = None
        self._inode, self._offset = 0, 0

    def read(self) -> bool:
        """Read what was added; returns whether there was anything."""
        try:
            with open_file(self.file) as stream:
                about = os.fstat(stream.fileno())
                if about.st_ino != self._inode or about.st_size < self._offset:
                    # Another file has the name: the stage was started anew.
                    self._forget()
                self._inode, self.written = about.st_ino, about.st_mtime
                stream.seek(self._offset)
                added = stream.read()
        except OSError:
            # Moved to `previous/` by a runner, or no regular file.
            self._forget()
            return False
        # The rest is a line that is being written: it is read again.
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [line for raw in whole.split(b"\n") if (line := _line(raw)) is not None]
        self.lines += new
        while len(self.lines) > _MOST:
            self.lines = _halved(self.lines)
        return bool(new)

    def moment(self) -> Moment:
        """How far the run is, by its last lines."""
        if not self.lines:
            return Moment()
        last = self.lines[-1]
        figures = {name: value for line in self.lines[-200:] for name, value in line.items()}
        left = last["max_steps"] - last["step"]
        # Since the last start: the time between two starts is no training.
        begun = next((at for at in reversed(range(len(self.lines))) if self.lines[at].get("began")), 0)
        near = self.lines[begun:][-_WINDOW:]
        seconds, steps = last["time"] - near[0]["time"], last["step"] - near[0]["step"]
        known = steps > 0 and seconds > 0 and left > 0
        return Moment(last["step"], last["max_steps"], seconds / steps * left if known else None, figures)


def read_progress(folder: Path) -> list[Line]:
    """All that a run has logged."""
    log = Log(folder)
    log.read()
    return log.lines


def _line(raw: bytes) -> Line | None:
    """The numbers of a line; None where it is none of a run's."""
    with suppress(ManifestError, ArithmeticError, LookupError, ValueError):
        read = parse_json(raw, PROGRESS)
        # Of each line the same text, not one of its own.
        found = {sys.intern(name): value for name, value in read.items() if isinstance(value, int | float)}
        if math.isfinite(found["time"]):
            return found | {"step": int(found["step"]), "max_steps": int(found.get("max_steps", 0))}
    return None


def _halved(lines: list[Line]) -> list[Line]:
    """About half of the lines, those of evaluations and of beginnings among them as long as they are few."""
    # The last one always: it says how far the run is.
    kept = [
        line
        for number, line in enumerate(lines, start=1)
        if (len(lines) - number) % 2 == 0 or line.get("began") or any(name.startswith("eval_") for name in line)
    ]
    return kept if len(kept) < len(lines) * 0.9 else lines[(len(lines) - 1) % 2 :: 2]
