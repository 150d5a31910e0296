"""Runs at and below folders, as board and watch follow them: how far each is, and what it said last.

Nothing outside of the folders is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hftune.checkpoints.manifest import COMPLETE, INTERRUPTED, Manifest, read_manifest
from hftune.constants import LOG_NAME, MANIFEST_NAME, SAMPLES_NAME
from hftune.errors import ManifestError
from hftune.opening.files import open_file
from hftune.tools.reporting.progress import PROGRESS, Log, Moment
from hftune.tools.reporting.stages import ANSWERS, COMPLETIONS, run_folders

RUNNING, FINISHED, STOPPED, SILENT, LOADING, UNREADABLE = (
    *("running", "finished", "stopped", "silent", "loading", "unreadable"),
)
"""`STOPPED` has a checkpoint that it resumes from; `SILENT` has not finished, and has written nothing for a while."""

FILES = (MANIFEST_NAME, PROGRESS, SAMPLES_NAME, ANSWERS, COMPLETIONS, LOG_NAME)
_PATIENCE = 120.0
"""Seconds without a line after which a run is silent; more where its lines are further apart."""
_WINDOW = 20
_TAIL = 64 << 10


@dataclass
class Watched:
    """A run that is followed.

    Args:
        top: The folder that was given, links resolved; nothing outside is read.
        folder: The run's own.
        manifest: Empty while there is none, or where it cannot be read (`fault` says why).
    """

    top: Path
    folder: Path
    log: Log
    manifest: Manifest = field(default_factory=dict)
    fault: str = ""

    @property
    def name(self) -> str:
        """The folder relative to what was given."""
        return self.folder.name if self.folder == self.top else str(self.folder.relative_to(self.top))

    def read(self) -> None:
        """Read what is new."""
        self.manifest = {}
        self.fault = next((f"{name} is a link out of {self.top}" for name in FILES if self._leads_out(name)), "")
        if self.fault:
            # Forgotten, what was read before the link was put there as well.
            self.log = Log(self.folder)
            return
        try:
            self.manifest = read_manifest(self.folder) or {}
        except (OSError, ManifestError) as error:
            self.fault = str(error)
        self.log.read()

    def _leads_out(self, name: str) -> bool:
        file = self.folder / name
        with suppress(OSError, RuntimeError):  # RuntimeError: links in a circle
            return file.is_symlink() and not file.resolve().is_relative_to(self.top)
        return True

    @property
    def state(self) -> str:
        """One of the words above."""
        status = self.manifest.get("status")
        if self.fault:
            return UNREADABLE
        if status in (COMPLETE, INTERRUPTED):
            return FINISHED if status == COMPLETE else STOPPED
        if not self.log.lines:
            return LOADING
        lines = [line["time"] for line in self.log.lines[-_WINDOW:]]
        apart = (lines[-1] - lines[0]) / max(1, len(lines) - 1)
        return RUNNING if self.quiet() < max(_PATIENCE, 5 * apart) else SILENT

    def quiet(self) -> float:
        """Seconds since the run wrote its last line."""
        return max(0.0, time.time() - (self.log.written or time.time()))

    def moment(self) -> Moment:
        """How far the run is; the time that is left of one that runs."""
        found = self.log.moment()
        return found if self.state == RUNNING else replace(found, seconds_left=None)

    def checkpoints(self) -> list[int]:
        """The steps of its checkpoints that are whole, in order."""
        found: list[Path] = []
        with suppress(OSError):
            found = list(self.folder.glob("checkpoint-*/hftune_checkpoint.json"))
        steps = [file.parent.name.removeprefix("checkpoint-") for file in found]
        return sorted(int(step) for step in steps if step.isdecimal() and len(step) < 16)

    def last_words(self, count: int) -> tuple[str, list[str]]:
        """The name and the last lines of the log that was written last: the run's own, or its pipeline's."""
        for folder in (self.folder, self.folder.parent):
            known: list[tuple[float, Path]] = []
            for file in (folder / LOG_NAME, *folder.glob("logs/*.log")):
                with suppress(OSError, RuntimeError):  # RuntimeError: links in a circle
                    if file.resolve().is_relative_to(self.top):
                        known.append((file.stat().st_mtime, file))
            file = max(known, default=(0.0, folder))[1]
            if lines := tail(file, count):
                return str(file.relative_to(folder)), lines
        return "", []


class Runs:
    """The runs at and below folders, found again each time they are read."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.tops = [Path(folder).resolve() for folder in folders]
        self.all: dict[Path, Watched] = {}

    def read(self) -> list[Watched]:
        """The runs, read anew: in the order in which they were written, the last one last."""
        places = {place: top for top in reversed(self.tops) for place in run_folders(top)}
        known = self.all
        self.all = {place: known.get(place) or Watched(top, place, Log(place)) for place, top in places.items()}
        for run in self.all.values():
            run.read()
        return sorted(self.all.values(), key=lambda run: (_written(run), str(run.folder)))


def _written(run: Watched) -> float:
    with suppress(OSError):
        return run.log.written or (run.folder / MANIFEST_NAME).stat().st_mtime
    return 0.0


def tail(file: Path, count: int) -> list[str]:
    """The last lines of a text file that are not blank; none where it cannot be read."""
    with suppress(OSError), open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - _TAIL))
        lines = stream.read(_TAIL).decode("utf-8", errors="replace").splitlines()
        # The first one is cut where the file is longer.
        return [line for line in lines[size > _TAIL :] if line.strip()][-count:]
    return []
