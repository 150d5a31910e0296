"""Single files that are whole and durable, and a disk's faults in one message."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from hftune.errors import ArgumentError, DataError
from hftune.publishing import disk
from hftune.publishing.disk import disk_errors, free_name, is_plain_folder, write_file, writing_problem


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "made" / "a.json"
    write_file(file, "one")
    write_file(file, b"two")
    assert file.read_bytes() == b"two" and [*file.parent.iterdir()] == [file]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "a.json").symlink_to(victim)
    write_file(tmp_path / "a.json", "new")
    assert victim.read_text() == "mine" and not (tmp_path / "a.json").is_symlink()


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0o000, 0o666)])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_file(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("name", ["a.json", "x" * 200])
def test_what_a_kill_leaves_of_a_file_is_known_by_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Path] = []
    monkeypatch.setattr(disk.os, "replace", lambda aside, file: left.append(Path(aside)))
    write_file(tmp_path / name, "x")
    write_file(tmp_path / f"other {name}"[:200], "x")
    disk.remove_partials(tmp_path / name)
    assert not left[0].exists() and left[1].exists() and left[0].parent == tmp_path


def test_flushed_upwards_and_never_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a", "below/b"):
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(OSError, match="symbolic links"):
        disk.flush(tmp_path / "link")
    flushed: list[str] = []
    monkeypatch.setattr(disk, "flush", lambda path: flushed.append(str(path.relative_to(tmp_path))))
    disk.flush_tree(tmp_path)
    assert flushed == ["below/b", "below", "a", "."]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_was_there_stays_when_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (tmp_path / "a").write_text("old")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="Input/output"):
        write_file(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_contents_are_flushed_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("flush"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (order.append("rename"), replace(*names)))
    write_file(tmp_path / "a", "x")
    assert order == ["flush", "rename", "flush"]


@pytest.mark.parametrize(
    "error, words",
    [
        (OSError(errno.ENOSPC, "x"), "No space left on device"),
        (OSError(errno.EFBIG, "x"), "File too large"),  # `ulimit -f`, and FAT's limit of 4 GiB
        (SafetensorError("I/O error: File too large (os error 27)"), "File too large"),
        (OSError(errno.ENOTCONN, "x"), "Transport endpoint is not connected"),  # s3fs, sshfs, gcsfuse have died
        (OSError(errno.ESTALE, "x"), "Stale file handle"),
        (OSError(errno.EROFS, "x"), "Read-only file system"),
        (OSError(errno.EDQUOT, "x"), "quota"),
        (PermissionError(errno.EACCES, "x"), "Permission denied"),
        (FileExistsError(errno.EEXIST, "x"), "File exists"),
        (OSError("8192 requested and 0 written"), "No space left on device"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 3 vs 2"), "No space left"),
        (RuntimeError("basic_ios::clear: iostream error"), "No space left"),
        (Exception("Input/output error (os error 5)"), "Input/output error"),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), "No space left"),
        (RuntimeError("I/O error: Read-only file system (os error 30)"), "Read-only file system"),
    ],
)
def test_faults_of_a_disk_are_one_message(error: Exception, words: str) -> None:
    with pytest.raises(ArgumentError) as said, disk_errors("out", "--output_dir"):
        raise error
    assert words in said.value.cause and said.value.cause.startswith("out cannot be written")
    assert said.value.place == "--output_dir" and said.value.fix


@pytest.mark.parametrize(
    "error",
    [ValueError("No space left on device"), Exception("something else"), FileNotFoundError(2, "x"), DataError("No")],
)
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as said, disk_errors("out"):
        raise error
    assert said.value is error


def test_a_file_that_cannot_be_read_is_named_itself(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"^/far/away: Permission denied"), disk_errors(tmp_path / "out"):
        raise PermissionError(errno.EACCES, "x", "/far/away")
    with pytest.raises(ArgumentError, match="out cannot be written"), disk_errors(tmp_path / "out"):
        raise PermissionError(errno.EACCES, "x", str(tmp_path / "out" / "below"))


def test_the_room_of_a_disk_is_that_of_where_a_folder_would_be(tmp_path: Path) -> None:
    assert abs(disk.free_bytes(tmp_path / "not" / "yet") - disk.free_bytes(tmp_path)) < 1 << 26
    assert disk.free_bytes(tmp_path) > 0


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert writing_problem(tmp_path / "not" / "yet") is None and not any(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    below = writing_problem(tmp_path / "file" / "below")
    assert below is not None and "a file stands where a folder is needed" in str(below.fix)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert writing_problem(tmp_path / "circle") is not None
    assert writing_problem(Path("a\0b")) is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "x")

    def strange(*_: object) -> None:
        raise OSError(errno.ENOENT, "No such file or directory")  # as /proc answers

    monkeypatch.setattr(disk.os, "fsync", strange)
    nowhere = writing_problem(tmp_path / "not" / "yet")
    assert nowhere is not None and "cannot be written: No such file" in nowhere.cause
    assert "name a folder on a disk of yours" in str(nowhere.fix)
    monkeypatch.setattr(disk.os, "fsync", full)
    problem = writing_problem(tmp_path / "not" / "yet")
    assert problem is not None and "No space left" in problem.cause


def test_free_names(tmp_path: Path) -> None:
    assert free_name(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a").symlink_to("nowhere")
    (tmp_path / "a-1").mkdir()
    assert free_name(tmp_path / "a") == tmp_path / "a-2"


def test_a_link_to_a_folder_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_plain_folder(tmp_path) and not is_plain_folder(tmp_path / "link")
    assert not is_plain_folder(tmp_path / "none") and not is_plain_folder(tmp_path / "none" / "below")
