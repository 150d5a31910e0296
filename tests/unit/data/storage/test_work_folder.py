"""A work folder is its maker's until it is removed, or its maker is dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.data.storage import work_folder as workfolder
from hftune.data.storage.work_folder import work_folder


def test_it_goes_when_the_block_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyError), work_folder(tmp_path, ".k-") as folder:
        assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_living_ones_stay(tmp_path: Path) -> None:
    with work_folder(tmp_path, ".k-") as one, work_folder(tmp_path, ".k-") as two:
        assert one != two and one.is_dir() and two.is_dir()


def dead(parent: Path, prefix: str) -> Path:
    """What a killed process leaves: the folder, and a lock that nobody holds."""
    with work_folder(parent, prefix) as folder:
        pass
    folder.mkdir()
    (folder / "file").touch()
    Path(f"{folder}.lock").touch()
    return folder


def test_dead_ones_of_the_same_kind_go(tmp_path: Path) -> None:
    gone, other = dead(tmp_path, ".k-"), dead(tmp_path, ".l-")
    with work_folder(tmp_path, ".k-"):
        assert not gone.exists() and other.is_dir()


def test_those_of_another_machine_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workfolder.platform, "node", lambda: "there")
    theirs = dead(tmp_path, ".k-")
    monkeypatch.setattr(workfolder.platform, "node", lambda: "here")
    with work_folder(tmp_path, ".k-"):
        assert theirs.is_dir()


def test_a_lock_without_a_folder_goes(tmp_path: Path) -> None:
    dead(tmp_path, ".k-").rename(tmp_path / "elsewhere")
    with work_folder(tmp_path, ".k-"):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["elsewhere"]
