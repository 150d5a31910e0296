"""One run at a time in an output folder, and a checkpoint that takes the place of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune import logging
from hftune.checkpoints.integrity import read_record
from hftune.errors import ArgumentError
from hftune.publishing import locks
from hftune.publishing.folder import make_work
from hftune.publishing.locks import OUTPUT_LOCK
from hftune.trainers import result
from hftune.trainers.features.checkpoints import publish_checkpoint
from hftune.trainers.result import lock_output, unlock_output
from tests.unit.checkpoints.test_resume import make


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(locks, "OUTPUT_SECONDS", 0.1)
    yield
    unlock_output()


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    lock_output(tmp_path / "out", create=False)
    assert not (tmp_path / "out").exists(), "nothing is made before the run is checked"
    lock_output(tmp_path / "out", create=True)
    lock_output(tmp_path / "out", create=True)  # held already
    mine = dict(result._held)
    result._held.clear()  # as another process: a lock is a file's that was opened, not a process's
    with pytest.raises(ArgumentError, match="another process is writing"):
        lock_output(tmp_path / "out", create=False)
    result._held.update(mine)
    unlock_output()
    assert not any((tmp_path / "out").iterdir())


def test_a_planted_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / OUTPUT_LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(ArgumentError, match="in the way"):
        lock_output(tmp_path, create=True)
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("foreign", [None, "notes.txt", "no record"])
def test_the_same_step_again(tmp_path: Path, foreign: str | None) -> None:
    old = make(tmp_path, 5, record=foreign != "no record")
    if foreign == "notes.txt":
        (old / foreign).write_text("mine")
    new = make(make_work(tmp_path / ".partial"), 5, record=False)
    (new / "extra").write_text("of the new one")
    publish_checkpoint(new, old, {"step": 5, "world_size": 9})
    assert (read_record(old) or {})["world_size"] == 9
    assert (old / "extra").is_file() and not (tmp_path / ".checkpoint-5.old").exists()
    kept = tmp_path / "checkpoint-5.replaced"
    assert kept.is_dir() == (foreign is not None)
    assert foreign != "notes.txt" or (kept / "notes.txt").read_text() == "mine"
    assert (f"did not write {foreign}" in "\n".join(map(str, logging._notices))) == (foreign == "notes.txt")
