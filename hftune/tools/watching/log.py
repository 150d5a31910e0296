"""What a run has logged, read as it grows: of bounded size, whatever the file holds."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hftune.errors import ManifestError
from hftune.opening.files import MIB, open_file
from hftune.opening.json_file import parse_json
from hftune.tools.reporting.stages import PROGRESS

Line = dict[str, Any]
"""Names and finite or infinite numbers of a log; `step` and `time` are always there."""

_MOST, _MOST_FIGURES = 4000, 100_000
"""Lines that are kept, and figures in all of them: of more, every other line goes."""
_AT_ONCE = 64 * MIB
_LONGEST = 64 << 10
_FIGURES, _NAME = 150, 80
_LARGEST = 1e15  # tokens of a run, seconds since the epoch and FLOPs a second are below


class Log:
    """Follows `progress.jsonl` of a folder.

    Attributes:
        lines: Those of the file, numbers only.
        written: When the file was last written, in seconds since the epoch; None without a file.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / PROGRESS
        self._forget()

    def _forget(self) -> None:
        self.lines: list[Line] = []
        self.written: float | None = None
        self._inode, self._offset, self._rest = 0, 0, b""

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
                added = stream.read(_AT_ONCE)
        except OSError:
            # Moved to `previous/` by a runner, or no regular file.
            self._forget()
            return False
        self._offset += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        # A line without an end must not grow for ever; its tail is dropped as no JSON.
        self._rest = self._rest[-_LONGEST:]
        new = [line for raw in whole if (line := _line(raw)) is not None]
        self.lines += new
        while len(self.lines) > 1 and (len(self.lines) > _MOST or sum(map(len, self.lines)) > _MOST_FIGURES):
            self.lines = _halved(self.lines)
        return bool(new)


def _line(raw: bytes) -> Line | None:
    """The numbers of a line; None where it is none of a run's."""
    if len(raw) > _LONGEST:
        return None
    found: dict[str, Any] = {}
    with suppress(ManifestError):
        found = dict(_numbers(parse_json(raw, PROGRESS, finite=False, halves=True)))
    if not all(math.isfinite(found.get(name, math.nan)) for name in ("step", "time")):
        return None
    # Steps are whole numbers, which `int` must be able to make of these.
    for name in ("step", "max_steps"):
        value = found.get(name, 0)
        found[name] = int(value) if 0 <= value <= _LARGEST else 0
    return found


def _numbers(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(found.items())[:_FIGURES]:
        if name == "began":
            yield name, bool(value)
        elif len(name) <= _NAME and isinstance(value, int | float) and not isinstance(value, bool):
            # What no curve can show counts as infinite: differences of such numbers are no floats.
            # Of each line the same text, not one of its own.
            yield sys.intern(name), value if not abs(value) > _LARGEST else math.copysign(math.inf, value)


def _halved(lines: list[Line]) -> list[Line]:
    """About half of the lines, those of evaluations and of beginnings among them as long as they are few."""
    # The last one always: it says how far the run is.
    kept = [
        line
        for number, line in enumerate(lines, start=1)
        if (len(lines) - number) % 2 == 0 or line.get("began") or any(name.startswith("eval_") for name in line)
    ]
    return kept if len(kept) < len(lines) * 0.9 else lines[(len(lines) - 1) % 2 :: 2]
