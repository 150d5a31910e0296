"""Whose a folder is: a finished result to the last file, or somebody's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.constants import MANIFEST_NAME
from hftune.publishing import ownership
from hftune.publishing.ownership import (
    foreign_files,
    output_problems,
    place_problems,
    read_own_manifest,
    record_written,
    work_folder,
)


def finished(folder: Path, **more: Any) -> Path:
    (folder / "below").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "below" / "x.txt").write_text("x")
    manifest = {"status": "complete", "written": record_written(folder), **more}
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    return folder


def said(output: Path | str | None, *, overwrite: bool = False, inputs: list[Path] | None = None) -> str:
    return "\n".join(map(str, output_problems(output and str(output), overwrite=overwrite, inputs=inputs or [])))


def test_a_finished_result_has_nothing_foreign(tmp_path: Path) -> None:
    assert foreign_files(finished(tmp_path / "out")) == []


def test_what_is_added_changed_or_linked_is_foreign(tmp_path: Path) -> None:
    folder = finished(tmp_path / "out")
    (folder / "thesis.txt").write_text("mine")
    (folder / "config.json").write_text("[]")
    (folder / "below" / "x.txt").rename(tmp_path / "x.txt")
    (folder / "below" / "x.txt").symlink_to(tmp_path / "x.txt")
    (folder / "elsewhere").symlink_to(tmp_path)
    changed = "(changed after it was written)"
    assert foreign_files(folder) == [f"below/x.txt {changed}", f"config.json {changed}", "elsewhere", "thesis.txt"]


@pytest.mark.parametrize(
    "manifest",
    [
        "{",
        "{}",
        json.dumps({"status": "running"}),
        json.dumps({"status": "complete", "written": {"config.json": [2, 0]}}),
        json.dumps({"status": "complete", "written": ["config.json"]}),
    ],
)
def test_without_a_sound_manifest_all_of_it_is_somebodys(tmp_path: Path, manifest: str) -> None:
    folder = finished(tmp_path / "out")
    (folder / MANIFEST_NAME).write_text(manifest)
    assert foreign_files(folder) == ["below/x.txt", "config.json", MANIFEST_NAME]


def test_a_manifest_behind_a_link_is_none(tmp_path: Path) -> None:
    folder = finished(tmp_path / "out")
    (folder / MANIFEST_NAME).rename(tmp_path / "there.json")
    (folder / MANIFEST_NAME).symlink_to(tmp_path / "there.json")
    assert read_own_manifest(folder) is None and "config.json" in foreign_files(folder)


def test_folders_alone_are_somebodys(tmp_path: Path) -> None:
    (tmp_path / "out" / "below").mkdir(parents=True)
    assert foreign_files(tmp_path / "out") == ["folders"]


def test_what_may_be_replaced(tmp_path: Path) -> None:
    folder = finished(tmp_path / "out")
    assert "already holds a finished result" in said(folder) and "--overwrite_output_dir" in said(folder)
    assert said(folder, overwrite=True) == said(tmp_path / "new") == ""
    (tmp_path / "empty").mkdir()
    assert said(tmp_path / "empty") == ""
    for name in ("a", "b", "c"):
        (folder / name).write_text("mine")
    assert str(output_problems(str(folder), overwrite=True, inputs=[])[0].cause).endswith("did not write: a, b, c")
    (folder / "d").write_text("mine")
    message = said(folder, overwrite=True)
    assert "what hftune did not write: a, b, c and 1 more" in message


def test_another_process_is_given_the_time_of_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its work folder is there, what looks foreign is looked at again."""
    folder = finished(tmp_path / "out")
    (folder / "new.txt").write_text("half way")
    work_folder(folder).mkdir()
    monkeypatch.setattr(ownership.time, "sleep", lambda _: (folder / "new.txt").unlink(missing_ok=True))
    assert said(folder, overwrite=True) == ""
    (folder / "new.txt").write_text("stays")
    work_folder(folder).rmdir()
    assert "new.txt" in said(folder, overwrite=True), "without one it is looked at once"


def test_places_that_cannot_be_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "in" / "model").mkdir(parents=True)

    def at(output: str | None, *inputs: Path) -> str:
        return "\n".join(map(str, place_problems(output, inputs=list(inputs), flag="--to")))

    assert "no output folder was named" in at(None) and "add --to FOLDER" in at("")
    assert "is the working directory" in at(".") and "is a folder above" in at("..")
    assert "is no folder" in at("file") and "cannot be a folder" in at("x" * 300) and "cannot be a folder" in at("a\0b")
    assert f"in holds {tmp_path / 'in' / 'model'}, which is read" in at("in", tmp_path / "in" / "model")
    assert "which is read" in at("in/model", tmp_path / "in" / "model")
    assert at("in/other", tmp_path / "in" / "model") == ""
    assert "is a mount point" in at("/proc")
