"""Files that hftune adds to are its own: no links, no second names, nothing that waits."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from hftune.opening.own_file import open_own


def test_what_is_written_goes_to_the_end(tmp_path: Path) -> None:
    file, umask = tmp_path / "a.log", os.umask(0o022)
    os.umask(umask)
    for part in (b"1", b"2"):
        with open_own(file) as stream:
            assert stream.tell() == file.stat().st_size
            stream.write(part)
    assert file.read_bytes() == b"12" and stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize(
    ("kind", "number"),
    [("link", errno.ELOOP), ("broken link", errno.ELOOP), ("name", errno.EMLINK), ("pipe", errno.ENXIO)],
)
def test_what_is_somebodys_is_not_opened(tmp_path: Path, kind: str, number: int) -> None:
    file, theirs = tmp_path / "a.log", tmp_path / "theirs"
    theirs.write_text("mine")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "name":
        os.link(theirs, file)
    else:
        file.symlink_to(theirs if kind == "link" else "nowhere")
    with pytest.raises(OSError) as caught:
        open_own(file)
    assert caught.value.errno == number and theirs.read_text() == "mine" and not (tmp_path / "nowhere").exists()
