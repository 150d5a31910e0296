"""Whether a command may write to a place: every command and stage asks before anything loads, and before it writes.

A place can be written to, holds nothing that the command reads, and nothing that hftune did not write.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hftune.constants import MANIFEST_NAME
from hftune.errors import ArgumentError, UserError
from hftune.publishing.disk import lexists
from hftune.publishing.ownership import (
    COMPLETE,
    foreign_files,
    foreign_of_run,
    is_of_run,
    is_part_of_run,
    is_written,
    not_added_to,
    read_own_manifest,
    work_folder,
)
from hftune.weight_files import is_model

ATTEMPTS, SECONDS_BETWEEN_ATTEMPTS = 4, 0.05
"""How often, and after how many seconds, what other processes may be changing is looked at again."""
_SHOWN = 3


@dataclass(frozen=True)
class Kind:
    """What a command puts at a place.

    Args:
        noun: What an earlier one is called.
        foreign: What is there that hftune did not write, a phrase each.
        finished: Whether an earlier one is there, where nothing is foreign.
        replaces: Whether what has this name below the place is replaced or removed.
    """

    noun: str
    foreign: Callable[[Path], list[str]]
    finished: Callable[[Path], bool]
    replaces: Callable[[str], bool]


FOLDER = Kind("result", foreign_files, lambda place: any(place.iterdir()), lambda name: True)
"""A folder that appears whole."""
RUN = Kind("run", foreign_of_run, lambda place: (read_own_manifest(place) or {}).get("status") == COMPLETE, is_of_run)
"""A stage's output folder: a result among checkpoints and logs."""
REWARDS = Kind(
    "file of rewards", lambda place: not_added_to(place, ("rewards-*.tsv",)), lambda place: False, lambda name: False
)
"""A folder with files of rewards, to which every run adds."""
FILE = Kind("file", lambda file: [] if is_written(file) else [file.name], lambda file: True, lambda name: False)
"""A file that stands alone."""


def check_place(
    output: str | Path | None,
    inputs: Iterable[Path] = (),
    *,
    kind: Kind = FOLDER,
    overwrite: bool = False,
    flag: str = "--output_dir",
    overwrite_flag: str = "--overwrite_output_dir",
) -> list[UserError]:
    """Why nothing may be written to `output`; empty where it may.

    Args:
        output: The place that was asked for.
        inputs: Files and folders that are read.
        kind: What is put there.
        overwrite: Whether replacing an earlier one was asked for.
        flag: What names the output.
        overwrite_flag: What asks for replacing an earlier one.
    """
    if not output:
        return [ArgumentError("no output folder was named", place=flag, fix=f"add {flag} FOLDER")]
    cause = _bad_name(output, kind) or _read_there(output, kind, inputs) or _shared(output, kind)
    if cause:
        return [ArgumentError(cause, place=flag, fix="name another place, such as a new folder")]
    place = _place(output, kind)
    for _ in range(ATTEMPTS):
        problems = _content_problems(output, place, kind, flag, "" if overwrite else overwrite_flag)
        if not problems or not place.name or not lexists(work_folder(place)):
            break
        time.sleep(SECONDS_BETWEEN_ATTEMPTS)  # in the middle of another process's exchange nothing looks whole
    return problems


def _place(output: str | Path, kind: Kind) -> Path:
    """The place itself. A link under a file's own name is replaced by the rename, and not followed."""
    file = Path(os.path.abspath(output))
    return file.parent.resolve() / file.name if kind is FILE else Path(output).resolve()


def _bad_name(output: str | Path, kind: Kind) -> str:
    """Why nothing can be put under this name, whatever it holds; "" where it can."""
    if Path(output).parts[:1] == ("~",):  # in a YAML file, or quoted
        return f"{output} begins with ~, which a shell would have made your home of"
    try:
        place = _place(output, kind)
        os.lstat(work_folder(place) if place.name else place)
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, links in a circle, a zero byte
        what = getattr(error, "strerror", None) or str(error)
        return f"{str(output)!r} cannot be a {'file' if kind is FILE else 'folder'}: {what}"
    return ""


def _shared(output: str | Path, kind: Kind) -> str:
    """Why a folder is no place of its own for a result; "" where it is one."""
    if kind is FILE:
        return ""
    place, home, here = _place(output, kind), Path.home().resolve(), Path.cwd()
    if place == here:
        return f"{output} is the working directory"
    if place == home or place in (*home.parents, *here.parents):
        return f"{output} is your home, or a folder above it or the working directory"
    if lexists(place) and not place.is_dir():
        return f"{output} is no folder"
    # Only a rename needs more than a folder there.
    if kind is FOLDER and os.path.ismount(place):
        return f"{output} is a mount point"
    if is_part_of_run(place.name) and os.path.isfile(place.parent / MANIFEST_NAME):
        return f"{output} is part of the run in {place.parent}"
    if (read_own_manifest(place) or {}).get("status") == "checkpoint":
        return f"{output} is a checkpoint of a run"
    return ""


def _read_there(output: str | Path, kind: Kind, inputs: Iterable[Path]) -> str:
    """Which input would be replaced, or would have the output among its records; "" for none."""
    place = _place(output, kind)
    for path in inputs:
        read = path.resolve()
        # Two names of one file, or of one folder that is mounted twice, are no links.
        if read == place or (os.path.exists(read) and os.path.exists(place) and os.path.samefile(read, place)):
            return f"{output} is {path}, which is read"
        # Replacing a folder removes what it held, also what is only read.
        if place in read.parents and kind.replaces(read.relative_to(place).parts[0]):
            return f"{output} holds {path}, which is read"
        # A folder of records is searched to its end, at the next start, too. A project's folder holds both.
        if read in place.parents and not is_model(read) and not (kind is RUN and read == Path.cwd()):
            return f"{output} lies in {path}, which is read"
    return ""


def _content_problems(output: str | Path, place: Path, kind: Kind, flag: str, overwrite_flag: str) -> list[UserError]:
    if not lexists(place):
        return []
    try:
        foreign = kind.foreign(place)
        finished = kind.finished(place)
    except OSError as error:
        return [ArgumentError(f"{output} cannot be read: {error.strerror}", place=flag, fix="choose another folder")]
    if foreign and kind is FILE:
        cause = f"{output} is there already: hftune did not write it, or it was edited since"
        return [ArgumentError(cause, place=flag, fix="choose another name, or move it away")]
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        return [
            ArgumentError(
                f"{output} already holds what hftune did not write: {', '.join(foreign[:_SHOWN])}{more}",
                place=flag,
                fix="choose another folder; nothing but a finished result of hftune's is ever replaced",
            )
        ]
    if finished and overwrite_flag:
        there = f"{output} is there already" if kind is FILE else f"{output} already holds a finished {kind.noun}"
        return [ArgumentError(there, place=flag, fix=f"choose another one, or add {overwrite_flag}, which replaces it")]
    return []
