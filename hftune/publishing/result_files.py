"""Files of a result in a folder that holds more: a stage's output folder, with its checkpoints and logs.

They are written into a work folder inside (`.result.partial`), flushed, and moved one by one. The manifest that says
`running` goes first, so that a folder between two results never claims to be a finished one. A process that dies in
the middle leaves a work folder that says `ready`, and the next start moves the rest.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from hftune.constants import MANIFEST_NAME, SAMPLES_NAME
from hftune.digests import changed_files
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.publishing.disk import flush, is_plain_folder, lexists, remove_partials
from hftune.publishing.folder import RESULT, begin_work, clear_work, is_ours, is_ready, make_ready
from hftune.publishing.locks import folder_lock
from hftune.publishing.ownership import read_own_manifest, recorded_files

WORK = ".result.partial"


def begin_result(folder: Path) -> Path:
    """Make an empty folder inside `folder` for the files of a result; returns it.

    Raises:
        ArgumentError: Something that hftune did not make has the work folder's name.
    """
    recover_result(folder)
    return begin_work(folder / WORK)


def result_folder(folder: Path) -> Path:
    """The folder that `begin_result` has made, for the files of a result."""
    return folder / WORK / RESULT


def finish_result(folder: Path) -> None:
    """Move the written files into `folder`, durably; files of the result before that are not replaced are removed.

    Only files that the folder's finished manifest records, and that nobody changed since, count as such.
    """
    work = folder / WORK
    make_ready(work)
    _move_in(work, folder)


def recover_result(folder: Path) -> None:
    """Complete what a killed process left in `folder`, or remove it where it was not whole; the caller holds the lock.

    Raises:
        ArgumentError: Something that hftune did not make has the work folder's name.
    """
    for name in (MANIFEST_NAME, SAMPLES_NAME):
        remove_partials(folder / name)
    work = folder / WORK
    if not lexists(work):
        return
    if not is_ours(work):
        raise ArgumentError(f"{work} is in the way, and hftune did not make it", place=str(work), fix="move it away")
    if is_ready(work):
        notice(f"put in place the result in {work}, which a process that was killed had left there")
        _move_in(work, folder)
    else:
        _remove(work)


def complete_result(folder: Path) -> None:
    """Put in place what a process that was killed had left ready, where no other is at work there.

    Called before a folder is checked: between two results its files are of both.
    """
    if is_ready(folder / WORK):
        with suppress(ArgumentError, OSError), folder_lock(folder):  # said by who writes there
            recover_result(folder)


def _move_in(work: Path, folder: Path) -> None:
    result = work / RESULT
    # The manifest first: it says `running`, and a folder between two results must not claim to be finished.
    names = sorted(_names(result), key=lambda name: (name != MANIFEST_NAME, name))
    _remove_old(folder, {*names})
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(result / name, target)
        if name == MANIFEST_NAME:
            flush(folder)  # before any weight changes, the folder has stopped being a finished result
    for place in {(folder / name).parent for name in names}:
        flush(place)
    _remove(work)


def _remove_old(folder: Path, kept: set[str]) -> None:
    """Remove the files of the result before that the new one does not replace: they would be loaded with it."""
    manifest: dict[str, Any] = read_own_manifest(folder) or {}
    for name, record in recorded_files(manifest).items():
        file = folder / name
        if name not in kept and file.is_file() and not file.is_symlink():
            # Edited since: it is no longer only hftune's, so that it is not hftune's to remove.
            if any(changed_files(folder, {name: record})):
                notice(f"{file} is left: it was changed after the result before this one was written")
            else:
                file.unlink()


def _remove(work: Path) -> None:
    clear_work(work)
    work.rmdir()


def _names(result: Path) -> list[str]:
    return [str(file.relative_to(result)) for file in result.rglob("*") if not is_plain_folder(file)]
