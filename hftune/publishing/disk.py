"""Write files and folders that survive a power cut, and report faults of disks and permissions in one message."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from hftune.errors import ArgumentError, UserError

_FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on the disk or in your quota, or name another folder"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "name a folder that you may write to"),
    **dict.fromkeys(
        (errno.EIO, errno.ESTALE, errno.ENOTCONN),
        "the disk has a fault, or a network disk is gone: name a folder on another one, and look at it",
    ),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.EISDIR), "choose another name"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "a file stands where a folder is needed: name another folder"),
    **dict.fromkeys((errno.ELOOP, errno.ENXIO), "what has this name is a link, or no file: move it away"),
    errno.EMLINK: "it has a second name (a hard link), under which it would change as well: copy it, or name another",
    errno.EFBIG: "`ulimit -f` or the file system takes no file so large: raise it, or name a folder on another disk",
    **dict.fromkeys((errno.EBUSY, errno.EXDEV), "name a folder below it: a mount point cannot be replaced"),
}
# Libraries written in C++ and Rust give the operating system's words without its number.
_SAID = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EFBIG, errno.ESTALE, errno.ENOTCONN)
_WORDS = {os.strerror(number): number for number in _SAID}
# numpy's `tofile` and torch.save say that less was written than was to be, and keep the reason for themselves; a disk
# without room is the common one.
_CUT_SHORT = re.compile(
    r"\d+ requested and \d+ written|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter|iostream error"
)


def flush(path: Path) -> None:
    """Make sure that a file's contents, or the names in a folder, survive a power cut."""
    # fsync works on a handle that was opened for reading, of a folder as well.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_tree(folder: Path, moved: Callable[[], None] = lambda: None) -> None:
    """Flush every file and folder of a tree, the folder itself last; `moved` is called after each file."""
    # Upwards: a folder's own entry is flushed after what it names.
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not os.path.islink(os.path.join(root, name)):
                flush(Path(root) / name)
                moved()
        flush(Path(root))


def write_file(file: Path, content: bytes | str) -> None:
    """Write a file whole or not at all, and durably; an existing one is replaced by the rename.

    The new file has a name that nobody can foresee and is created exclusively, so that a link planted under a name
    that could be guessed has no effect; a link under the file's own name is replaced, not followed.

    Raises:
        OSError: The disk does not take it; what was there is untouched.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name[:120]}.{secrets.token_hex(6)}.partial")
    data = content.encode() if isinstance(content, str) else content
    try:
        # 0o666 leaves the permissions to the user's umask, as `open` does.
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, file)
    except BaseException:  # Ctrl-C as well: the partial file has no other owner
        with suppress(OSError):
            aside.unlink()
        raise
    flush(file.parent)  # the rename itself lies in the folder


def remove_partials(file: Path) -> None:
    """Remove what killed processes left in `write_file` for a file; the caller keeps other writers out."""
    # Only the exact form of `write_file`'s names: any other file is not hftune's to remove.
    named = re.compile(re.escape(f".{file.name[:120]}.") + r"[0-9a-f]{12}\.partial")
    for entry in file.parent.iterdir():
        if named.fullmatch(entry.name) and stat.S_ISREG(os.lstat(entry).st_mode):
            entry.unlink()


def disk_fault(error: BaseException) -> int | None:
    """The operating system's number for a fault of the disk or its permissions; None for an error of another kind."""
    if isinstance(error, OSError) and error.errno in _FIXES:
        return error.errno
    # tokenizers, written in Rust, raises `Exception` itself.
    if not isinstance(error, OSError | RuntimeError | SafetensorError) and type(error) is not Exception:
        return None
    text = str(error)
    if _CUT_SHORT.search(text):
        return errno.ENOSPC
    return next((number for words, number in _WORDS.items() if words in text), None)


@contextmanager
def disk_errors(target: Path | str, place: str = "--output_dir") -> Iterator[None]:
    """Turn a fault of the disk in the block into hftune's one message.

    Raises:
        ArgumentError: What the operating system said, where, and the way out.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        number = disk_fault(error)
        if number is None:
            raise
        cause = f"{target} cannot be written: {os.strerror(number)}"
        named = getattr(error, "filename", None)
        # A library may fail on a file that it reads, its cache for instance, while the target is fine.
        if isinstance(named, str) and not named.startswith(str(Path(target).resolve().parent)):
            cause = f"{named}: {os.strerror(number)}"  # not the target at all, but something that was read
        raise ArgumentError(cause, place=place, fix=_FIXES[number]) from error


def writing_problem(folder: Path, place: str = "--output_dir") -> ArgumentError | None:
    """Why nothing can be written to a folder, or to where it would be made; None where it can. Nothing is left there.

    A file without a name is made, written and flushed: permissions alone say nothing of disks that are full or
    mounted read-only, nor of what an administrator may do.
    """
    try:
        with disk_errors(folder, place):
            with suppress(FileNotFoundError):
                os.lstat(folder)  # a name that is too long could not be made later
            there = _nearest(folder)
            if not there.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "", str(there))
            with tempfile.TemporaryFile(dir=there) as probe:
                probe.write(bytes(1 << 12))
                probe.flush()
                os.fsync(probe.fileno())
    except ArgumentError as problem:
        return problem
    except OSError as error:  # as /proc answers, which takes no files
        cause = f"{folder} cannot be written: {error.strerror or error}"
        return ArgumentError(cause, place=place, fix="name a folder on a disk of yours, below your home for instance")
    except (RuntimeError, ValueError) as error:  # links in a circle, a zero byte
        return ArgumentError(f"{str(folder)!r} cannot be a folder: {error}", place=place, fix="choose another name")
    return None


def free_bytes(folder: Path) -> int:
    """Bytes that are free on the disk of a folder, or of where it would be made."""
    return shutil.disk_usage(_nearest(folder)).free


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest existing one above it."""
    there = folder.resolve()
    while not lexists(there):
        there = there.parent
    return there


def is_plain_folder(path: Path) -> bool:
    """Whether a path is a folder itself, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def lexists(path: Path) -> bool:
    """Whether anything has this name, a broken link included."""
    return os.path.lexists(path)


def free_name(path: Path) -> Path:
    """The path, with a number behind it where the name is taken."""
    number, found = 1, path
    while lexists(found):
        found = path.with_name(f"{path.name}-{number}")
        number += 1
    return found
