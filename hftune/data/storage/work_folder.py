"""Folders to write into, which a killed process leaves behind and the next one removes."""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

# What `tempfile` puts at the end of a name.
_RANDOM = r"[a-z0-9_]{8}"


@contextmanager
def work_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """An empty folder for as long as the block lasts; its lock, next to it, is free once this process is dead.

    Dead ones of the same kind that lie in `parent` are removed first, but only those of this machine: whether a process
    of another one is alive cannot be told on every network drive.

    Args:
        parent: An existing folder.
        prefix: What the names of this kind begin with.
    """
    kind = f"{prefix}{re.sub(r'[^A-Za-z0-9]', '', platform.node())}-"
    _remove_dead(parent, kind)
    # The lock first: a folder that is there while its lock is free counts as dead.
    with tempfile.NamedTemporaryFile(dir=parent, prefix=kind, suffix=".lock", delete=False) as lock_file:
        name = lock_file.name
    lock = FileLock(name, thread_local=False)
    lock.acquire()
    folder = Path(name.removesuffix(".lock"))
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # Before the lock is released: another process could take it, and lose it with the file.
        Path(name).unlink(missing_ok=True)
        lock.release()


def _remove_dead(parent: Path, kind: str) -> None:
    """Remove folders whose lock nobody holds. One without a lock is none of ours."""
    named = re.compile(rf"{re.escape(kind)}{_RANDOM}\.lock")
    for lock_file in [entry for entry in parent.iterdir() if named.fullmatch(entry.name)]:
        lock = FileLock(lock_file, thread_local=False)
        try:
            # A lock that a living process holds stays; the system frees those of dead ones.
            lock.acquire(timeout=0)
        except (Timeout, OSError):  # alive, or no lock at all: a link that somebody has put there
            continue
        folder = Path(str(lock_file).removesuffix(".lock"))
        # Somebody may have put a link in its place: what it leads to is not ours.
        if not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
        lock_file.unlink(missing_ok=True)
        lock.release()
