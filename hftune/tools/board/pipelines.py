"""Pipelines that the board can start and stop: files that were given, and those that its form has written."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import xxhash
import yaml

from hftune import child_processes
from hftune.constants import PREEMPTED_EXIT_CODE
from hftune.errors import ArgumentError, UserError
from hftune.opening.files import open_file
from hftune.opening.own_file import open_own
from hftune.opening.yaml_file import read_yaml
from hftune.publishing.disk import disk_errors
from hftune.publishing.files import published_file

ACTIONS = {"run": "Start", "plan": "Plan", "check": "Check", "stop": "Stop"}
FOLDER = "board"
"""Below the first folder: what the form has written, and what the commands said."""
NAME = re.compile(r"[\w][\w.-]{0,63}", re.ASCII)
_LOCK = "hftune.lock"
# Of files that lie there, and bytes of one: the form writes far less, and who else writes there must not slow it down.
_MOST, _LARGEST = 200, 16 << 10


@dataclass
class Pipeline:
    """A pipeline file.

    Args:
        id: Its number in an address.
        folder: Its output folder; None where that is not known without its variables.
        log: What the commands of the board said.
        stopping: The process that was asked to stop.
    """

    id: str
    name: str
    file: Path
    folder: Path | None
    log: Path
    action: str = ""
    process: child_processes.Popen[Any] | None = None
    stopping: int | None = None
    _seen: tuple[int, int, int] | None = None

    def read(self) -> None:
        """Read the file where it has changed: parsing one takes seconds for a megabyte, and pages ask all the time."""
        seen = None
        with suppress(OSError):
            about = os.stat(self.file)
            seen = about.st_mtime_ns, about.st_ino, about.st_size
        if seen is None or seen != self._seen:
            self._seen, self.folder = seen, _output_folder(self.file)

    def runner(self) -> int | None:
        """The process on this machine that runs the pipeline, whoever has started it; None for none."""
        if self.process is not None and self.process.poll() is None and self.action == "run":
            return self.process.pid
        return holder(self.folder / _LOCK) if self.folder is not None else None

    def state(self) -> str:
        """Words for what its last command does, or came to."""
        if (runner := self.runner()) is not None:
            return "stopping" if runner == self.stopping else "running"
        if self.process is None:
            return ""
        code = self.process.poll()
        if code is None:
            return f"{self.action}: at work"
        told = {0: "done", PREEMPTED_EXIT_CODE: "stopped, a checkpoint is saved"}
        return f"{self.action}: {told.get(code, f'failed with exit code {code}')}"


class Pipelines:
    """All of them.

    Args:
        top: The folder below which the form writes.
        files: Those that were given.
    """

    def __init__(self, top: Path, files: Sequence[Path]) -> None:
        self.top, self.place, self._given = top, top / FOLDER, [file.absolute() for file in files]
        self._known: dict[Path, Pipeline] = {}

    def all(self) -> list[Pipeline]:
        """Those that were given, then those of the form by name."""
        written: list[Path] = []
        if not self.place.is_symlink():
            found = islice(self.place.glob("*.yaml"), _MOST)
            written = sorted(file for file in found if not file.is_symlink() and _is_small(file))
        for file in [*self._given, *written]:
            if file not in self._known:
                digest = xxhash.xxh3_64_hexdigest(os.fsencode(file))
                self._known[file] = Pipeline(
                    digest, file.stem, file, None, self.place / f"{file.stem}-{digest[:6]}.log"
                )
            self._known[file].read()
        return [self._known[file] for file in [*self._given, *written]]

    def one(self, asked: str) -> Pipeline:
        """The one of a number.

        Raises:
            LookupError: There is none.
        """
        for found in self.all():
            if found.id == asked:
                return found
        raise LookupError(asked)

    def write(self, name: str, content: Mapping[str, Any]) -> Pipeline:
        """Write a pipeline of this name; it replaces only an earlier one that nobody has edited.

        Raises:
            ArgumentError: The name is none, a file is in the way, it runs, or the disk does not take it.
        """
        if not NAME.fullmatch(name) or name == FOLDER:  # its output folder would be the one of these files
            fix = f"letters, digits, `-`, `_` and `.`, at most 64, and not {FOLDER}"
            raise ArgumentError(f"{name!r} cannot be the name of a pipeline", place="name", fix=fix)
        file = self.place / f"{name}.yaml"
        if self.place.is_symlink():
            raise _is_a_link(self.place)
        earlier = self._known.get(file)
        if earlier is not None and earlier.runner() is not None:
            raise ArgumentError(f"{name} runs", place="name", fix="stop it first, or choose another name")
        body = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=120)
        if len(body.encode()) > _LARGEST - 100:  # with its first line
            raise ArgumentError("the file would be too large", place="the form", fix=f"{_LARGEST} bytes are the most")
        with disk_errors(self.top, "FOLDER"):
            self.place.mkdir(exist_ok=True)
        with published_file(file, flag="name") as stream:
            stream.write(f"# Written by `hftune board`\n{body}")
        return next(found for found in self.all() if found.file == file)

    def act(self, pipeline: Pipeline, action: str) -> None:
        """Start a command on a pipeline, or ask the one that runs to save a checkpoint and end.

        Raises:
            ArgumentError: It runs already, or nothing runs that could be stopped.
        """
        runner = pipeline.runner()
        if action == "stop":
            if runner is None:
                raise ArgumentError(f"{pipeline.name} does not run on this machine", place="stop", fix="nothing to do")
            # A second signal would end the stage at once, without a checkpoint.
            if runner == pipeline.stopping:
                raise ArgumentError(f"{pipeline.name} is stopping", place="stop", fix="wait: it saves a checkpoint")
            pipeline.stopping = runner
            with suppress(ProcessLookupError):
                os.kill(runner, signal.SIGINT)
            return
        busy = pipeline.process is not None and pipeline.process.poll() is None
        if busy or (runner is not None and action == "run"):
            raise ArgumentError(f"{pipeline.name} is at work", place=action, fix="wait for it, or stop it")
        command = child_processes.python("-m", "hftune.cli", "pipeline", action, str(pipeline.file))
        with disk_errors(self.top, "FOLDER"), _log(self.place, pipeline.log) as log:
            # In a session of its own: Ctrl-C in the board's terminal ends the page, and no run.
            pipeline.process = child_processes.start(
                command, stdin=child_processes.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        pipeline.action = action


def _log(folder: Path, file: Path) -> BinaryIO:
    """The log of a command, emptied."""
    if folder.is_symlink():
        raise _is_a_link(folder)
    folder.mkdir(exist_ok=True)
    stream = open_own(file)
    stream.truncate(0)
    return stream


def _is_a_link(folder: Path) -> ArgumentError:
    return ArgumentError(f"{folder} is a link", place="FOLDER", fix="move it away: the board writes there")


def holder(lock: Path) -> int | None:
    """The process of this machine that holds a pipeline's folder; None for none, or for another user's.

    The number in the file is not believed: a folder may come from anywhere. The process must have this very file open.
    """
    with suppress(OSError, ValueError, psutil.Error):
        if lock.is_symlink():
            return None
        with open_file(lock) as stream:
            number = int(stream.read(32))
        mine = os.stat(lock)
        process = psutil.Process(number)
        if "pipeline" in process.cmdline() and any(_same(opened.path, mine) for opened in process.open_files()):
            return number
    return None


def _same(path: str, wanted: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.stat(path), wanted)
    return False


def _output_folder(file: Path) -> Path | None:
    """The output folder of a pipeline file, where it stands there without references."""
    folder = content_of(file).get("output_dir")
    if not isinstance(folder, str) or not folder or {"$", "\0"} & {*folder}:
        return None
    return Path(os.path.abspath(folder))


def _is_small(file: Path) -> bool:
    with suppress(OSError):
        return file.stat().st_size <= _LARGEST
    return False


def content_of(file: Path) -> dict[str, Any]:
    """What a pipeline file holds; nothing where it cannot be read."""
    with suppress(UserError):
        found = read_yaml(file)
        return found if isinstance(found, dict) else {}
    return {}
