"""A lock that lets one runner at a time work in a pipeline's folder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.opening.own_file import open_own
from hftune.publishing.disk import disk_errors

NAME = "hftune.lock"
# Seconds. The supervisor of a killed runner holds the lock until its stage has ended, which takes seconds.
_PATIENCE = 60.0


@contextmanager
def locked(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the folder's lock in the block. It is the operating system's: it ends with the last process that shares it.

    Processes of a runner that was killed may need a moment to end; those of a living one are not waited for.

    Raises:
        ArgumentError: Another runner works in the folder, or it cannot be written.
    """
    file = folder / NAME
    with disk_errors(folder, "output_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        # Not truncated: who waits reads the holder's number in it.
        stream = open_own(file)
    # The file stays: with it removed two runners could lock different files of one name.
    with stream:
        handle = stream.fileno()
        _acquire(handle, file, patience)
        if os.pread(handle, 32, 0).strip(b"0123456789\n"):
            raise ArgumentError(
                f"{file} is in the way, and hftune did not make it", place=str(file), fix="move it away"
            )
        with disk_errors(folder, "output_dir"):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield


def _acquire(handle: int, file: Path, patience: float) -> None:
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            alive = holder.isdecimal() and _runs(int(holder))
            if alive or time.monotonic() > until:
                raise ArgumentError(
                    f"another `hftune pipeline` works in this folder (process {holder or 'unknown'})",
                    place=str(file.parent),
                    fix="wait for it, or end it; or give this pipeline another output_dir",
                ) from None
            notice("waiting for the processes of an interrupted run to end")
            time.sleep(0.2)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
