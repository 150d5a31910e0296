"""Files of a result that move into a folder with more in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hftune.checkpoints.file_records import record_result
from hftune.checkpoints.manifest import read_manifest, write_manifest
from hftune.errors import ArgumentError
from hftune.publishing import result_files
from hftune.publishing.locks import folder_lock
from hftune.publishing.result_files import (
    WORK,
    begin_result,
    complete_result,
    finish_result,
    recover_result,
)


def finished(folder: Path, **files: str) -> None:
    """A finished result, as a stage leaves it."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    write_manifest(folder, {"status": "complete", "files": record_result(folder)})


def fill(folder: Path, **files: str) -> None:
    result = begin_result(folder)
    for name, content in files.items():
        (result / name).write_text(content)
    (result / "critic").mkdir()
    (result / "critic" / "w").write_text("c")
    write_manifest(result, {"status": "running"})


def test_files_move_in_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "train.log").write_text("mine")
    fill(tmp_path, weights="new")
    assert not (tmp_path / "weights").exists()
    finish_result(tmp_path)
    assert (tmp_path / "weights").read_text() == "new" and (tmp_path / "critic" / "w").read_text() == "c"
    assert (tmp_path / "train.log").read_text() == "mine" and (tmp_path / "checkpoint-1").is_dir()
    assert not (tmp_path / WORK).exists() and (read_manifest(tmp_path) or {})["status"] == "running"


def test_old_shards_go_and_edited_files_stay(tmp_path: Path) -> None:
    finished(tmp_path, weights="old", shard1="old", shard2="old")
    (tmp_path / "shard2").write_text("edited")
    (tmp_path / "foreign").write_text("mine")
    fill(tmp_path, weights="new")
    assert (tmp_path / "shard1").exists(), "nothing goes before the new result is whole"
    finish_result(tmp_path)
    assert not (tmp_path / "shard1").exists() and (tmp_path / "shard2").read_text() == "edited"
    assert (tmp_path / "foreign").read_text() == "mine" and (tmp_path / "weights").read_text() == "new"


def test_the_manifest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path, weights="old")
    fill(tmp_path, weights="new")
    moved, replace = [], os.replace
    monkeypatch.setattr(result_files.os, "replace", lambda a, b: (moved.append(Path(b).name), replace(a, b)))
    finish_result(tmp_path)
    assert [name for name in moved if name in ("hftune.json", "weights", "w")] == ["hftune.json", "w", "weights"]


def test_the_manifest_is_durable_before_a_weight_moves_and_all_of_it_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, weights="new")
    order, replace = [], os.replace
    monkeypatch.setattr(result_files, "make_ready", lambda work: order.append("ready"))
    monkeypatch.setattr(result_files, "flush", lambda folder: order.append(f"flush {folder.relative_to(tmp_path)}"))
    monkeypatch.setattr(result_files.os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b)))
    finish_result(tmp_path)
    assert order[:5] == ["ready", "hftune.json", "flush .", "w", "weights"]
    assert sorted(order[5:]) == ["flush .", "flush critic"]


@pytest.mark.parametrize("moves", range(3))
def test_a_move_that_was_cut_short_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int) -> None:
    finished(tmp_path, weights="old")
    fill(tmp_path, weights="new")
    replace, count = os.replace, 0

    def dies(*names: Path) -> None:
        nonlocal count
        count += WORK in str(names[0]) and ".hftune.work" not in str(names[0])
        if count > moves:
            raise KeyboardInterrupt
        replace(*names)

    monkeypatch.setattr(result_files.os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        finish_result(tmp_path)
    monkeypatch.undo()
    if (tmp_path / "weights").read_text() == "new":
        assert (read_manifest(tmp_path) or {})["status"] == "running"
    recover_result(tmp_path)
    assert (tmp_path / "weights").read_text() == "new" and (tmp_path / "critic" / "w").exists()
    assert not (tmp_path / WORK).exists()


def test_what_was_not_whole_is_cleared_away(tmp_path: Path) -> None:
    finished(tmp_path, weights="old")
    fill(tmp_path, weights="half")
    recover_result(tmp_path)
    assert (tmp_path / "weights").read_text() == "old" and not (tmp_path / WORK).exists()
    recover_result(tmp_path)


@pytest.mark.parametrize("kind", ["link", "file", "folder"])
def test_something_else_of_that_name(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis").write_text("mine")
    if kind == "link":
        (tmp_path / WORK).symlink_to(victim)
    elif kind == "file":
        (tmp_path / WORK).write_text("mine")
    else:
        victim.rename(tmp_path / WORK)
    with pytest.raises(ArgumentError, match="in the way"):
        begin_result(tmp_path)
    assert json.dumps([str(path) for path in tmp_path.rglob("thesis")]).count("thesis")


def test_what_a_kill_left_of_the_manifest_goes(tmp_path: Path) -> None:
    for name in ("hftune.json", "samples.json"):
        (tmp_path / f".{name}.0123456789ab.partial").write_text("{}")
    (tmp_path / ".hftune.json.mine.partial").write_text("{}")
    (tmp_path / ".hftune.json.ba9876543210.partial").symlink_to("hftune.json")
    recover_result(tmp_path)
    assert {*os.listdir(tmp_path)} == {".hftune.json.mine.partial", ".hftune.json.ba9876543210.partial"}


def test_a_result_that_a_kill_left_half_in_place_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two results the files of a folder are of both, and would look like somebody's."""
    finished(tmp_path, weights="old")
    fill(tmp_path, weights="new")
    complete_result(tmp_path)
    assert (tmp_path / "weights").read_text() == "old" and (tmp_path / WORK).is_dir(), "it was not whole"
    monkeypatch.setattr(result_files, "flush", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        finish_result(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "weights").read_text() == "old" and (read_manifest(tmp_path) or {})["status"] == "running"
    with folder_lock(tmp_path):
        monkeypatch.setattr("hftune.publishing.locks.OUTPUT_SECONDS", 0.01)
        complete_result(tmp_path)
        assert (tmp_path / WORK).is_dir(), "another process is at work"
    complete_result(tmp_path)
    assert (tmp_path / "weights").read_text() == "new" and not (tmp_path / WORK).exists()
