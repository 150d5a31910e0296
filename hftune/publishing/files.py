"""Single files as results: written whole, and never over a file that hftune did not write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from hftune.errors import raise_together
from hftune.publishing.disk import flush
from hftune.publishing.folder import begin_work, clear_work, work_folder_locked
from hftune.publishing.ownership import work_folder, write_down
from hftune.publishing.places import FILE, check_place
from hftune.secrets import redact


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
