"""Single files as results: written whole, and never over a file that hftune did not write."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import xxhash

from hftune.errors import ArgumentError
from hftune.publishing.disk import flush, lexists
from hftune.publishing.folder import begin_work, clear_work, work_folder_locked
from hftune.publishing.ownership import work_folder
from hftune.secrets import redact

_MARK = re.compile(rb"<!-- hftune ([a-z]+) ([0-9a-f]{16}) -->\n\Z")


def file_problems(
    file: Path, *, overwrite: bool, written_by_us: Callable[[Path], bool], flag: str, overwrite_flag: str
) -> Iterator[ArgumentError]:
    """Why a result cannot be put in place under a file's name.

    Args:
        file: The target.
        overwrite: Whether replacing an earlier result was asked for.
        written_by_us: Whether the file that is there is an earlier result.
        flag: What names the file.
        overwrite_flag: What asks for replacing it.
    """
    if not lexists(file):
        return
    if not _is_regular(file) or not written_by_us(file):
        yield ArgumentError(
            f"{file} is there already, and hftune did not write it", place=flag, fix="choose another name"
        )
    elif not overwrite:
        yield ArgumentError(f"{file} is there already", place=flag, fix=f"choose another name, or add {overwrite_flag}")


@contextmanager
def published_file(file: Path, *, flag: str) -> Iterator[TextIO]:
    """A text file to write; when the block ends without an error, it has the name `file`.

    The caller has made sure, by `file_problems`, that what is there may be replaced.

    Raises:
        ArgumentError: Another process writes to it, something is in the way, or the disk does not take it.
    """
    # Not resolved: a link under the file's own name is replaced, not followed.
    target = Path(os.path.abspath(file))
    work = work_folder(target)
    with work_folder_locked(work, file, flag):
        clear_work(work)
        aside = begin_work(work) / target.name
        try:
            # "x": the work folder was emptied, so that only something planted there can have the name.
            with aside.open("x", encoding="utf-8") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, target)
            flush(target.parent)
        finally:
            clear_work(work)


def marked(text: str, kind: str) -> str:
    """The page with a last line by which hftune recognises it, unedited: a comment in HTML and in Markdown.

    Args:
        text: The page, without such a line.
        kind: What it is: letters only.
    """
    body = text if text.endswith("\n") else f"{text}\n"
    return f"{body}<!-- hftune {kind} {_digest(body.encode())} -->\n"


def is_marked(file: Path) -> bool:
    """Whether a page was written by `marked` and has not been edited since."""
    if not _is_regular(file):
        return False
    # The mark ends the page; one that quotes a mark elsewhere is not marked by it.
    content = file.read_bytes()
    found = _MARK.search(content)
    return found is not None and _digest(content[: found.start()]) == found[2].decode()


def write_page(file: Path, text: str, kind: str) -> None:
    """Write a page that hftune makes anew each time, without secrets; it replaces only its own earlier version.

    Raises:
        ArgumentError: The file is somebody's own, or was edited; another process writes it; or the disk does not take
            it.
    """
    if lexists(file) and not is_marked(file):
        raise ArgumentError(
            f"{file} was not written by hftune, or was edited since",
            place=str(file),
            fix="rename it, or move it away; nothing was changed",
        )
    with published_file(file, flag=str(file)) as stream:
        stream.write(marked(redact(text), kind))


def _digest(content: bytes) -> str:
    return xxhash.xxh3_64(content).hexdigest()


def _is_regular(file: Path) -> bool:
    return stat.S_ISREG(os.lstat(file).st_mode)
