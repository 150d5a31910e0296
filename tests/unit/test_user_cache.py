"""The cache is for its owner alone, and small files in it are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hftune import user_cache
from hftune.errors import DataError
from hftune.user_cache import cache_folder, private_folder, read_sealed, write_sealed


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", "/fast/cache")
    assert cache_folder() == Path("/fast/cache")
    monkeypatch.setenv("HFTUNE_CACHE", "")
    assert cache_folder() == Path("~/.cache/hftune").expanduser()


def test_folders_are_private(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "deep" / "cache", "help")
    assert folder.stat().st_mode & 0o777 == 0o700 == folder.parent.stat().st_mode & 0o777
    folder.chmod(0o755)
    folder.parent.chmod(0o750)
    private_folder(tmp_path / "deep" / "cache", "help")
    assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o700, 0o750)


def test_a_link_of_ones_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to("disk")
    write_sealed("help", "a", b"x", tmp_path / "cache")
    assert read_sealed("help", "a", tmp_path / "disk") == b"x"


def test_folders_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_cache.os, "geteuid", lambda: 4321)
    monkeypatch.setattr(user_cache, "_owner_of_new_files", lambda _: 4321)
    with pytest.raises(DataError, match="belongs to another user") as caught:
        private_folder(tmp_path, "help")
    assert "HFTUNE_CACHE" in (caught.value.fix or "")
    assert read_sealed("help", "a", tmp_path) is None


def test_a_drive_with_one_owner_for_everything_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_cache.os, "geteuid", lambda: 4321)
    assert private_folder(tmp_path, "help").is_dir(), "new files belong to the same number as the folder"


def test_small_files(tmp_path: Path) -> None:
    assert read_sealed("help", "a", tmp_path) is None
    for content in (b"", b"one", b"two" * 1000):
        write_sealed("help", "a", content, tmp_path)
        assert read_sealed("help", "a", tmp_path) == content
    assert os.listdir(tmp_path / "help") == ["a"]
    assert (tmp_path / "help" / "a").stat().st_mode & 0o777 == 0o600


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sealed("help", "a", b"old", tmp_path)
    monkeypatch.setattr(user_cache.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        write_sealed("help", "a", b"new", tmp_path)
    assert os.listdir(tmp_path / "help") == ["a"] and read_sealed("help", "a", tmp_path) == b"old"
