"""Whose a folder is: a finished result to the last file, or somebody's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hftune.constants import MANIFEST_NAME
from hftune.publishing.ownership import (
    WRITTEN_NAME,
    foreign_files,
    foreign_of_run,
    is_written,
    record_written,
    write_down,
)


def finished(folder: Path, **more: Any) -> Path:
    (folder / "below").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "below" / "x.txt").write_text("x")
    manifest = {"status": "complete", "written": record_written(folder), **more}
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    return folder


def test_a_page_that_hftune_adds_to_a_result_is_not_foreign(tmp_path: Path) -> None:
    page = finished(tmp_path / "out") / "report.html"
    page.write_text("one")
    write_down(page, page)
    assert foreign_files(tmp_path / "out") == []
    page.write_text("mine")
    assert foreign_files(tmp_path / "out") == ["report.html"]


def test_what_is_added_changed_or_linked_is_foreign(tmp_path: Path) -> None:
    folder = finished(tmp_path / "out")
    (folder / "thesis.txt").write_text("mine")
    (folder / "config.json").write_text("[]")
    (folder / "below" / "x.txt").rename(tmp_path / "x.txt")
    (folder / "below" / "x.txt").symlink_to(tmp_path / "x.txt")
    (folder / "elsewhere").symlink_to(tmp_path)
    changed = "(changed after it was written)"
    assert foreign_files(folder) == [f"below/x.txt {changed}", f"config.json {changed}", "elsewhere", "thesis.txt"]


def test_folders_alone_are_somebodys(tmp_path: Path) -> None:
    (tmp_path / "out" / "below").mkdir(parents=True)
    assert foreign_files(tmp_path / "out") == ["folders"]


def test_a_file_that_stands_alone_is_known_by_its_digest(tmp_path: Path) -> None:
    file, other = tmp_path / "scores.jsonl", tmp_path / "other"
    file.write_text("1")
    assert not is_written(file), "nothing says so"
    write_down(file, file)
    assert is_written(file)
    file.write_text("2")
    assert not is_written(file), "edited"
    other.write_text("1")
    assert not is_written(other), "under another name"
    file.write_text("1")
    assert is_written(file), "an edit taken back"
    file.rename(other)
    file.symlink_to(other)
    assert not is_written(file), "a link"


@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
def test_a_record_of_somebodys_is_neither_believed_nor_added_to(tmp_path: Path, kind: str) -> None:
    file, theirs, record = tmp_path / "a", tmp_path / "theirs", tmp_path / WRITTEN_NAME
    file.write_text("1")
    write_down(file, file)
    record.rename(theirs)
    if kind == "link":
        record.symlink_to(theirs)
        assert not is_written(file)
    elif kind == "pipe":
        os.mkfifo(record)
        assert not is_written(file), "nobody waits for a writer"
    else:
        os.link(theirs, record)
    before = theirs.read_text()
    with pytest.raises(OSError):
        write_down(file, file)
    assert theirs.read_text() == before


def test_what_a_run_may_not_replace(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    assert foreign_of_run(folder) == []
    (folder / "config.json").write_text("[]")
    (folder / "adapter_config.json").write_text("{}")
    assert foreign_of_run(folder) == ["adapter_config.json", "config.json"], "edited, and added"
    for name in ("notes.txt", "run.log", "checkpoint-1"):
        (folder / name).write_text("mine")
    (folder / "README.md").write_text("mine")
    assert foreign_of_run(folder) == ["adapter_config.json", "config.json"], "it leaves these, or adds to them"


@pytest.mark.parametrize("status", ["checkpoint", None, "mine"])
def test_only_a_runs_own_folder_is_a_runs(tmp_path: Path, status: str | None) -> None:
    folder = finished(tmp_path / "run", status=status)
    (folder / "trainer_state.json").write_text("{}")
    assert foreign_of_run(folder) == ["config.json", MANIFEST_NAME, "trainer_state.json"]


@pytest.mark.parametrize("status", ["complete", "running", "interrupted"])
@pytest.mark.parametrize("name", ["progress.jsonl", "run.log", "run-rank1.log", "trainer_state.json", "critic"])
def test_a_run_follows_no_link(tmp_path: Path, name: str, status: str) -> None:
    folder, theirs = finished(tmp_path / "run", status=status), tmp_path / "theirs"
    theirs.write_text("mine")
    (folder / name).symlink_to(theirs)
    assert foreign_of_run(folder).count(name) >= 1
    (folder / name).unlink()
    if name != "critic":
        os.link(theirs, folder / name)
        assert foreign_of_run(folder) == [name], "what is written there would stand in theirs"
