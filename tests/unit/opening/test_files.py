"""Only regular files of bounded size are read, and nothing waits."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hftune.errors import ArgumentError, ManifestError
from hftune.opening.files import open_regular, read_bytes, size_text


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bytes(file, limit=5) == b"12345"
    with pytest.raises(ManifestError, match=r"has 5 bytes; a file of its kind has at most 4 bytes") as problem:
        read_bytes(file, limit=4)
    assert problem.value.place == str(file) and problem.value.fix
    with open_regular(file) as stream:
        assert stream.read() == b"12345"


def test_the_error_is_of_the_class_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no file"):
        read_bytes(tmp_path / "none", limit=1, error=ArgumentError)
    (tmp_path / "file").write_bytes(b"12")
    with pytest.raises(ArgumentError, match="at most 1 bytes"):
        read_bytes(tmp_path / "file", limit=1, error=ArgumentError)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name, words in {
            "pipe": "is a pipe, where",
            "folder": "is a folder, where",
            "socket": "cannot be read",
            "a\0b": "cannot be read: embedded null byte",
            "x" * 300: "cannot be read: File name too long",
        }.items():
            with pytest.raises(ManifestError, match=words):
                read_bytes(tmp_path / name, limit=10)
    with pytest.raises(ManifestError, match="is a device"):
        read_bytes("/dev/zero", limit=10)


def test_a_pipe_with_a_writer_is_none_either(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    handle = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(handle, b"{}")
    with pytest.raises(ManifestError, match="is a pipe"):
        read_bytes(tmp_path / "pipe", limit=10)
    os.close(handle)


def test_files_that_say_nothing_of_their_size_are_bounded() -> None:
    """Those of /proc have 0 bytes by their own word."""
    if not Path("/proc/self/maps").is_file():
        pytest.skip("no /proc")
    with pytest.raises(ManifestError, match="at most 100 bytes"):
        read_bytes("/proc/self/maps", limit=100)


def test_sizes_as_people_read_them() -> None:
    assert size_text((1 << 20) - 1) == "1048575 bytes"
    assert size_text(3 << 19) == "1.5 MiB"
