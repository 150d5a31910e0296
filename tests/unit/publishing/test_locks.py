"""One writer at a time, and no lock through a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.errors import ArgumentError
from hftune.publishing.locks import acquire_lock, lock_folder, release_lock


def test_a_second_writer_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    held = acquire_lock(tmp_path / ".lock", "out", "--output_dir")
    with pytest.raises(ArgumentError, match="another process is writing to out"):
        acquire_lock(tmp_path / ".lock", "out", patience=0.05)
    release_lock(held)
    assert not (tmp_path / ".lock").exists()
    release_lock(acquire_lock(tmp_path / ".lock", "out", patience=0.05))


@pytest.mark.parametrize("kind", ["link", "broken link", "folder"])
def test_something_else_under_the_locks_name(tmp_path: Path, kind: str) -> None:
    lock, other = tmp_path / ".lock", tmp_path / "thesis.txt"
    if kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(other)
        if kind == "link":
            other.write_text("mine")
    with pytest.raises(ArgumentError, match="is in the way"):
        acquire_lock(lock, "out")
    assert not other.exists() or other.read_text() == "mine"


def test_the_lock_of_an_output_folder(tmp_path: Path) -> None:
    """By its name other versions of hftune know that somebody is at work."""
    held = lock_folder(tmp_path / "out")
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [".hftune.lock"]
    release_lock(held)
