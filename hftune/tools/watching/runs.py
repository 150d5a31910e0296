"""Runs at and below folders: which there are, how far each is, and what it said last. Nothing outside is read."""

from __future__ import annotations

import os
import re
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
from hftune.tools.reporting.stages import ANSWERS, COMPLETIONS, MOST_ENTRIES, MOST_RUNS, run_folders

RUNNING, FINISHED, STOPPED, SILENT, LOADING, UNREADABLE = (
    *("running", "finished", "stopped", "silent", "loading", "unreadable"),
)
"""`STOPPED` has a checkpoint that it resumes from; `SILENT` has not finished, and has written nothing for a while."""

FILES = (MANIFEST_NAME, PROGRESS, SAMPLES_NAME, ANSWERS, COMPLETIONS, LOG_NAME)
_PATIENCE = 120.0
"""Seconds without a line after which a run is silent; more where its lines are further apart."""
_WINDOW = 20
_TAIL = 64 << 10
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")


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
    _seen: tuple[int, int] | None = None
    _damage: str = ""
    _grew: float | None = None
    _reads: int = 0

    @property
    def name(self) -> str:
        """The folder relative to what was given."""
        return self.folder.name if self.folder == self.top else str(self.folder.relative_to(self.top))

    def read(self) -> bool:
        """Read what is new; returns whether anything is."""
        before = self._seen, self.fault
        self.fault = next((f"{name} is a link out of {self.top}" for name in FILES if self._leads_out(name)), "")
        if self.fault:
            # Forgotten, what was read before the link was put there as well.
            self.manifest, self._seen, self.log = {}, None, Log(self.folder)
            return before != (self._seen, self.fault)
        self._read_manifest()
        self.fault = self._damage
        grown = self.log.read()
        # What was there when following began may be old.
        if grown and self._reads:
            self._grew = time.monotonic()
        self._reads += 1
        return grown or before != (self._seen, self.fault)

    def _leads_out(self, name: str) -> bool:
        file = self.folder / name
        with suppress(OSError, RuntimeError):  # RuntimeError: links in a circle
            return file.is_symlink() and not file.resolve().is_relative_to(self.top)
        return True

    def _read_manifest(self) -> None:
        try:
            about = os.stat(self.folder / MANIFEST_NAME)
            seen = about.st_mtime_ns, about.st_ino
            if seen != self._seen:
                self._seen, self._damage = seen, ""
                self.manifest = read_manifest(self.folder) or {}
        except FileNotFoundError:
            self.manifest, self._seen, self._damage = {}, None, ""
        except (OSError, ManifestError) as error:
            self.manifest, self._damage = {}, str(error)

    @property
    def state(self) -> str:
        """One of the words above."""
        status = self.manifest.get("status")
        if self.fault:
            return UNREADABLE
        if status == COMPLETE:
            return FINISHED
        if status == INTERRUPTED:
            return STOPPED
        if not self.log.lines:
            return LOADING
        lines = [line["time"] for line in self.log.lines[-_WINDOW:]]
        apart = (lines[-1] - lines[0]) / max(1, len(lines) - 1)
        return RUNNING if self.quiet() < max(_PATIENCE, 5 * apart) else SILENT

    def quiet(self) -> float:
        """Seconds since the run wrote its last line. The clock of another machine is not trusted where it was seen."""
        known = [time.time() - self.log.written] if self.log.written is not None else []
        known += [time.monotonic() - self._grew] if self._grew is not None else []
        return max(0.0, min(known, default=0.0))

    def moment(self) -> Moment:
        """How far the run is; the time that is left of one that runs."""
        found = self.log.moment()
        return found if self.state == RUNNING else replace(found, seconds_left=None)

    def checkpoints(self) -> list[int]:
        """The steps of its checkpoints that are whole, in order."""
        found = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False):
                match = _CHECKPOINT.fullmatch(entry.name)
                if match and (Path(entry.path) / "hftune_checkpoint.json").is_file():
                    found.append(int(match[1]))
        return sorted(found)


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


def last_words(folder: Path, top: Path, count: int) -> tuple[str, list[str]]:
    """The name and the last lines of the log of a folder that was written last: a run's own, or a pipeline's."""
    logs = []
    with suppress(OSError):
        logs = sorted((folder / "logs").glob("*.log"))[:MOST_RUNS]
    known: list[tuple[float, Path]] = []
    for file in (folder / LOG_NAME, *logs):
        with suppress(OSError, RuntimeError):
            if file.resolve().is_relative_to(top):
                known.append((file.stat().st_mtime, file))
    if not known:
        return "", []
    file = max(known)[1]
    return str(file.relative_to(folder)), tail(file, count)


def tail(file: Path, count: int) -> list[str]:
    """The last lines of a text file that are not blank; none where it cannot be read."""
    with suppress(OSError), open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - _TAIL))
        lines = stream.read(_TAIL).decode("utf-8", errors="replace").splitlines()
        # The first one is cut where the file is longer.
        return [line for line in lines[size > _TAIL :] if line.strip()][-count:]
    return []
