"""A folder, or a file, as a result: it appears whole, or what was there before stays as it was.

Everything happens in one work folder alongside the target, `.NAME.partial`, which holds

- `.lock`, held while somebody works there,
- `hftune.work`, by which hftune knows it as its own; it says `ready` once the result is on the disk,
- `result`, which the command fills,
- `replaced`, the finished result that stood at the target, until the new one stands there.

Two renames exchange them. A process that dies between the two leaves no target, and the next start completes what it
had begun: with `ready` the new result goes into place, without it the old one goes back.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from filelock import FileLock

from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.publishing.disk import (
    disk_errors,
    flush,
    flush_tree,
    free_name,
    is_plain_folder,
    lexists,
    write_file,
    writing_problem,
)
from hftune.publishing.locks import LOCK_SECONDS, acquire_lock, busy_error, release_lock
from hftune.publishing.ownership import foreign_files, work_folder, write_down
from hftune.publishing.places import ATTEMPTS, FILE, SECONDS_BETWEEN_ATTEMPTS, check_place
from hftune.secrets import redact

MARK, RESULT, REPLACED = "hftune.work", "result", "replaced"
_DISCARDED, LOCK = "discarded", ".lock"
_WRITING, _READY = "writing\n", "ready\n"


@contextmanager
def work_folder_locked(work: Path, target: Path | str, flag: str = "--output_dir") -> Iterator[None]:
    """Make a work folder and hold its lock; nothing is left of the folder if it is empty in the end.

    Raises:
        ArgumentError: Another process works there, something else has the folder's name, or the disk does not take it.
    """
    # Before the lock: making one in somebody's folder would be a change of it.
    if _is_not_ours(work):
        raise ArgumentError(f"{work} is in the way, and hftune did not make it", place=flag, fix="move it away")
    with disk_errors(target, flag):
        lock = _locked(work, target, flag)
        try:
            yield
        finally:
            release_lock(lock)
            with suppress(OSError):  # not empty: what is left in it is for the next start
                work.rmdir()


def _is_not_ours(work: Path) -> bool:
    """Whether something that hftune did not make has a work folder's name; one that is being made or removed is not."""
    for _ in range(ATTEMPTS):
        with suppress(OSError):
            if not lexists(work) or is_ours(work):
                return False
        time.sleep(SECONDS_BETWEEN_ATTEMPTS)
    return True


def _locked(work: Path, target: Path | str, flag: str) -> FileLock:
    """Make the work folder and take its lock; its last holder may remove it in between, and then it is made again."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            work.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # as /proc answers, which takes no files
            raise_together(filter(None, [writing_problem(work.parent, flag)]))
            raise
        try:
            return acquire_lock(work / LOCK, target, flag)
        except FileNotFoundError:
            if time.monotonic() > until:  # there is always one more that was quicker
                raise busy_error(target, flag) from None


@contextmanager
def published_folder(
    output: str | Path, *, overwrite: bool = False, inputs: Sequence[Path] = (), flag: str = "--output_dir"
) -> Iterator[Path]:
    """An empty folder to fill; when the block ends without an error, it takes the place of `output`.

    Args:
        output: The target: a name that is free, an empty folder, or a finished result of hftune's.
        overwrite: Whether a finished result there may be replaced.
        inputs: What is read; the target must not hold it.
        flag: What names the output, for messages.

    Raises:
        ArgumentError: The target holds something else, another process writes to it, or the disk does not take it.
    """
    # Before anything is made: the work folder stands next to the target.
    raise_together(check_place(output, inputs, overwrite=overwrite, flag=flag))
    target = Path(output).resolve()
    work = work_folder(target)
    with work_folder_locked(work, output, flag):
        recover(target)
        # What is there is looked at now that nobody else changes it.
        raise_together(check_place(output, inputs, overwrite=overwrite, flag=flag))
        try:
            yield begin_work(work)
            # Within the `try`: an exchange that fails half-way is taken back like an error of the command.
            _exchange(work, target)
        except BaseException:
            _restore_target(work, target)
            raise


def recover(target: Path) -> None:
    """Complete or undo what a killed process left at a target; the caller holds the work folder's lock."""
    work = work_folder(target)
    old = work / REPLACED
    # The process died between the two renames: there is no target.
    if not lexists(target) and is_plain_folder(old):
        ready = is_ready(work)
        os.rename(work / RESULT if ready else old, target)
        flush(target.parent)
        what = "put in place the finished result" if ready else "brought back the result"
        notice(f"{what} of {target}, which a process that was killed had left in the middle of an exchange")
    elif lexists(work / RESULT):
        notice(f"removed {work}, left by a process that was interrupted")
    _remove(work, target)


def make_work(work: Path) -> Path:
    """Make a folder with the mark by which hftune recognises it as its own; returns it."""
    work.mkdir(parents=True, exist_ok=True)
    write_file(work / MARK, _WRITING)
    return work


def begin_work(work: Path) -> Path:
    """Make a work folder; returns the folder in it that is to be filled."""
    (make_work(work) / RESULT).mkdir()
    return work / RESULT


def make_ready(work: Path) -> None:
    """Flush the result to the disk, then mark it as whole."""
    flush_tree(work / RESULT)
    # After the flush: a result that is called ready must be on the disk.
    write_file(work / MARK, _READY)


def _exchange(work: Path, target: Path) -> None:
    make_ready(work)
    # No system call exchanges two folders on all file systems, so that for a moment there is no target: see `recover`.
    if lexists(target):
        os.rename(target, work / REPLACED)
        flush(target.parent)
    os.rename(work / RESULT, target)
    flush(target.parent)
    _remove(work, target)


def _restore_target(work: Path, target: Path) -> None:
    """Put the target back as it was; what cannot be undone now is left for the next start."""
    with suppress(OSError):
        if not lexists(target) and is_plain_folder(work / REPLACED):
            os.rename(work / REPLACED, target)
    # With the old result still inside, or the new one in its place already, the work folder is the next start's.
    if is_plain_folder(work / RESULT) and not lexists(work / REPLACED):
        with suppress(OSError):
            clear_work(work)


def _remove(work: Path, target: Path) -> None:
    """Remove a work folder; a replaced folder that holds files of others is kept under another name."""
    old = work / REPLACED
    if is_plain_folder(old) and any(old.iterdir()) and foreign_files(old):
        kept = free_name(target.with_name(f"{target.name}.replaced"))
        os.rename(old, kept)
        flush(kept.parent)
        notice(f"{kept} is what was at {target}: it holds what hftune did not write")
    if is_plain_folder(old):
        # Checked, and from here on only to be deleted: a deletion cut short must not be checked again.
        os.rename(old, work / _DISCARDED)
    clear_work(work)


def clear_work(work: Path, mark: str = MARK) -> None:
    """Empty a folder of hftune's, its mark last: without it hftune would no longer recognise the folder."""
    for entry in sorted(work.iterdir(), key=lambda entry: entry.name == mark):
        if is_plain_folder(entry):
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def is_ready(work: Path) -> bool:
    """Whether the result in a work folder is whole and on the disk."""
    return _state(work) == _READY and is_plain_folder(work / RESULT)


def is_ours(work: Path) -> bool:
    """Whether hftune made a work folder: it has the mark, or a process died before it had one."""
    if not is_plain_folder(work):
        return False
    names = [entry.name for entry in work.iterdir() if entry.name != LOCK]
    return _state(work) is not None or all(name.startswith(f".{MARK}.") for name in names)


def _state(work: Path) -> str | None:
    """The state in a work folder's mark; None where it has none of hftune's."""
    # A link or a pipe that somebody planted there is no mark: neither followed nor waited for.
    try:
        handle = os.open(work / MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        text = stream.read(16).decode("ascii", errors="replace")
    return text if text in (_WRITING, _READY) else None


# --- single files: whole, and never over one that hftune did not write ------------------------------------------------


@contextmanager
def published_file(file: Path, *, flag: str) -> Iterator[TextIO]:
    """A text file to write; when the block ends without an error, it has the name `file`, and its digest is recorded.

    Raises:
        ArgumentError: What is there was not written so, or was edited since; another process writes to it; or the disk
            does not take it.
    """
    # Not resolved: a link under the file's own name is replaced, not followed.
    target = Path(os.path.abspath(file))
    work = work_folder(target)
    with work_folder_locked(work, file, flag):
        raise_together(check_place(file, kind=FILE, overwrite=True, flag=flag))
        clear_work(work)
        aside = begin_work(work) / target.name
        try:
            # "x": the work folder was emptied, so that only something planted there can have the name.
            with aside.open("x", encoding="utf-8") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            write_down(target, aside)
            os.replace(aside, target)
            flush(target.parent)
        finally:
            clear_work(work)


def write_page(file: Path, text: str) -> None:
    """Write a page that hftune makes anew each time, without secrets; it replaces only its own earlier version.

    Raises:
        ArgumentError: The file is somebody's own, or was edited; another process writes it; or the disk does not take
            it.
    """
    with published_file(file, flag=str(file)) as stream:
        stream.write(redact(text).rstrip("\n") + "\n")
