"""One writer for a target: a lock of the operating system, which ends with the process that holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hftune.errors import ArgumentError

LOCK_SECONDS = 3.0
"""Seconds that a process waits for one that is just ending."""
OUTPUT_LOCK = ".hftune.lock"
OUTPUT_SECONDS = 10.0
"""Seconds. Worker processes of a run that was killed hold its lock until they notice."""


@contextmanager
def folder_lock(output: Path) -> Iterator[None]:
    """The lock of a run's output folder for a block; raises as `lock_folder` does."""
    held = lock_folder(output)
    try:
        yield
    finally:
        release_lock(held)


def lock_folder(output: Path) -> FileLock:
    """The lock of a run's output folder, held until `release_lock` or the end of the process.

    Raises:
        ArgumentError: Another run is at work in it.
        OSError: The disk does not take the lock's file.
    """
    return acquire_lock(output / OUTPUT_LOCK, output, patience=OUTPUT_SECONDS)


def acquire_lock(
    lock: Path, target: Path | str, place: str = "--output_dir", patience: float = LOCK_SECONDS
) -> FileLock:
    """The lock, held until `release_lock` or the end of the process; waits for a process that is just ending.

    filelock opens the file without following links and without emptying it: a link that somebody planted under its
    name is an error, and no file of theirs loses anything.

    Raises:
        ArgumentError: Another process holds it after `patience` seconds, or its name is a link or a folder.
        OSError: The disk does not take the lock's file.
    """
    if os.path.lexists(lock) and (os.path.islink(lock) or not lock.is_file()):
        raise ArgumentError(f"{lock} is in the way, and hftune did not make it", place=place, fix="move it away")
    held = FileLock(lock)
    try:
        held.acquire(timeout=patience)
    except Timeout:
        raise busy_error(target, place) from None
    return held


def busy_error(target: Path | str, place: str) -> ArgumentError:
    """The error where another process writes to a target."""
    return ArgumentError(
        f"another process is writing to {target}", place=place, fix="wait until it has ended, or name another folder"
    )


def release_lock(held: FileLock) -> None:
    """Remove the lock's file, then release the lock; a waiting filelock notices, and makes a new file."""
    # In this order: the other way round, the file of the next holder could be removed.
    with suppress(OSError):
        os.unlink(held.lock_file)
    held.release()
