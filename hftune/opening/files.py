"""Regular files of bounded size, and those of a folder itself: pipes, devices, links that lead out of it are refused.

Folders of the Hub's cache consist of links into `blobs` of the same repository; those are what they promise to be.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hftune.errors import ManifestError, UserError
from hftune.path_hints import path_hint

MIB = 1 << 20
# Without waiting for a writer, without becoming a terminal's process, closed in programs that are started. Not all
# systems have all three.
_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


def size_text(size: int) -> str:
    """A size as a message has it: 12 bytes, 64.0 MiB."""
    return f"{size} bytes" if size < MIB else f"{size / MIB:,.1f} MiB"


class NotAFileError(OSError):
    """Something else than a regular file has the name."""


def open_file(file: str | Path) -> BinaryIO:
    """A regular file opened for reading.

    A pipe would wait for a writer, and a device may never end: it is opened without waiting, then looked at, so that
    nothing can be put in its place between the look and the opening.

    Raises:
        OSError: From the system; `NotAFileError` for what is no regular file.
    """
    handle = os.open(file, os.O_RDONLY | _NEVER_WAIT)
    kind = os.fstat(handle).st_mode  # of what was opened, whatever has that name by now
    if not stat.S_ISREG(kind):
        os.close(handle)
        said = f"it is {_KINDS.get(stat.S_IFMT(kind), 'no file')}, where a file is read"
        raise NotAFileError(errno.ENXIO, said, str(file))
    return os.fdopen(handle, "rb")


def open_regular(file: str | Path, *, error: type[UserError] = ManifestError) -> BinaryIO:
    """As `open_file`, with the family of errors that a user reads.

    Raises:
        UserError: There is no such file, it cannot be read, or it is none.
    """
    try:
        return open_file(file)
    except (OSError, ValueError) as problem:  # ValueError: a zero byte in the name
        raise error(_cannot(file, problem), place=str(file), fix=_way_out(file, problem)) from problem


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_bytes(file: str | Path, *, limit: int, error: type[UserError] = ManifestError) -> bytes:
    """All bytes of a file that has no more than `limit`.

    Raises:
        UserError: It cannot be opened, or it is larger: of its kind none has a reason to be.
    """
    with open_regular(file, error=error) as stream:
        size = os.fstat(stream.fileno()).st_size
        # Some files under /proc say 0 and never end; others grow while they are read.
        content = stream.read(limit + 1) if size <= limit else b""
    if size > limit or len(content) > limit:
        raise error(
            f"{file} has {size_text(max(size, len(content)))}; a file of its kind has at most {size_text(limit)}",
            place=str(file),
            fix="copy or download it again, or make a smaller one",
        )
    return content


def _way_out(file: str | Path, problem: OSError | ValueError) -> str:
    """What to do about it: the nearest path where there is no file, else its permissions."""
    if isinstance(problem, FileNotFoundError):
        return path_hint(str(file), "the path of a file")
    if isinstance(problem, NotAFileError):
        return "put the file itself there"
    return "make it readable for you (ls -l shows whose it is), or name another file"


def _cannot(file: str | Path, problem: OSError | ValueError) -> str:
    if isinstance(problem, FileNotFoundError):
        return f"there is no file {file}"
    if isinstance(problem, NotAFileError):
        return f"{file}: {problem.strerror}"
    return f"{file} cannot be read: {getattr(problem, 'strerror', None) or problem}"


_READ = {".json", ".safetensors", ".bin", ".pt", ".pth", ".jinja", ".txt", ".model", ".py", ".gguf", ".tiktoken"}
"""Suffixes of what a model, an adapter or a checkpoint is read from."""
# Folders within a result that are read as well: named chat templates, and the critic of PPO.
_NESTED = ("additional_chat_templates", "critic")
# Names of huggingface_hub's cache: models--OWNER--NAME/blobs/DIGEST.
_HUB = re.compile(r"(models|datasets|spaces)--")
_BLOB = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?$")  # git's or the contents' own digest


def unsafe_entries(folder: str | Path) -> Iterator[ManifestError]:
    """Problems of the files that a folder is read from: links that lead out of it, broken ones, pipes, devices."""
    place = Path(folder)
    for file in _entries(place) if place.is_dir() else ():
        problem = unsafe_entry(file, place)
        if problem is not None:
            yield problem


def unsafe_entry(file: Path, folder: str | Path) -> ManifestError | None:
    """Why a file does not belong to a folder; None where it does, or is not there."""
    try:
        kind = os.lstat(file).st_mode
    except OSError:
        return None
    # First where it leads: what lies there is not even looked at.
    if stat.S_ISLNK(kind) and not _is_inside(file, Path(folder)):
        return _refusal(file, f"is a link that leads out of {folder}", "copy the file itself there (cp -L)")
    try:
        kind = os.stat(file).st_mode
    except OSError:
        return _refusal(file, "is a broken link", "copy the file itself there, or remove the link")
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        return _refusal(file, "is a pipe, a socket or a device, no file", "put the file itself there, or remove it")
    return None


def copy_file(file: Path, target: Path, *, within: str | Path) -> None:
    """Copy a file of the folder `within`; refuses a link that leads out of it.

    Raises:
        ManifestError: It is such a link, or no file.
    """
    problem = unsafe_entry(file, within)
    if problem is not None:
        raise problem
    # Opened and looked at once more: the name may have become a pipe since the check above.
    with open_regular(file) as source, open(target, "wb") as stream:
        shutil.copyfileobj(source, stream, 1 << 20)


def copy_folder(folder: Path, target: Path, *, within: str | Path) -> None:
    """Copy the files that lie in a folder itself, each as `copy_file` does."""
    problem = unsafe_entry(folder, within)
    if problem is not None:
        raise problem
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir()):
        if not file.is_dir():
            copy_file(file, target / file.name, within=within)


def _entries(folder: Path) -> Iterator[Path]:
    """The entries that are read, broken links and pipes included."""
    for entry in sorted(folder.iterdir()):
        if entry.name in _NESTED:
            yield entry
            # A link to a folder is judged itself: nothing behind it is looked at.
            yield from sorted(entry.iterdir()) if entry.is_dir() and not entry.is_symlink() else ()
        elif entry.suffix in _READ:
            yield entry


def _is_inside(file: Path, folder: Path) -> bool:
    """Whether a link ends in the folder, or in the blobs of a repository in the Hub's cache."""
    # Both without links: the folder itself may be reached through one.
    ends, home = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
    if home in ends.parents:
        return True
    return ends.parent.name == "blobs" and bool(_HUB.match(ends.parent.parent.name) and _BLOB.match(ends.name))


def _refusal(file: Path, cause: str, fix: str) -> ManifestError:
    return ManifestError(f"{file} {cause}", place=str(file), fix=fix)
