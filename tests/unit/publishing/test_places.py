"""Where a command may write: not over what it reads, what hftune did not write, or what everybody uses."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from hftune.constants import MANIFEST_NAME
from hftune.publishing import places
from hftune.publishing.ownership import work_folder, write_down
from hftune.publishing.places import FILE, FOLDER, REWARDS, RUN, Kind, check_place
from tests.unit.publishing.test_ownership import finished


def said(output: Path | str | None, *inputs: Path, overwrite: bool = False, kind: Kind = FOLDER) -> str:
    return "\n".join(map(str, check_place(output and str(output), inputs, kind=kind, overwrite=overwrite)))


def test_what_may_be_replaced(tmp_path: Path) -> None:
    folder = finished(tmp_path / "out")
    assert "already holds a finished result" in said(folder) and "--overwrite_output_dir" in said(folder)
    assert said(folder, overwrite=True) == said(tmp_path / "new") == ""
    (tmp_path / "empty").mkdir()
    assert said(tmp_path / "empty") == ""
    for name in ("a", "b", "c"):
        (folder / name).write_text("mine")
    assert check_place(folder, overwrite=True)[0].cause.endswith("did not write: a, b, c")
    (folder / "d").write_text("mine")
    message = said(folder, overwrite=True)
    assert "what hftune did not write: a, b, c and 1 more" in message


def test_another_process_is_given_the_time_of_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its work folder is there, what looks foreign is looked at again."""
    folder = finished(tmp_path / "out")
    (folder / "new.txt").write_text("half way")
    work_folder(folder).mkdir()
    monkeypatch.setattr(places.time, "sleep", lambda _: (folder / "new.txt").unlink(missing_ok=True))
    assert said(folder, overwrite=True) == ""
    (folder / "new.txt").write_text("stays")
    work_folder(folder).rmdir()
    assert "new.txt" in said(folder, overwrite=True), "without one it is looked at once"


@pytest.mark.parametrize("kind", [FOLDER, RUN, FILE])
def test_names_that_cannot_be_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    assert "no output folder was named" in said(None, kind=kind) and "cannot be a" in said("x" * 300, kind=kind)
    assert "begins with ~" in said("~", kind=kind) and "begins with ~" in said("~/out", kind=kind)
    assert said("~out", kind=kind) == said("new", kind=kind) == "" and "cannot be a" in said("a\0b", kind=kind)
    assert said("circle", kind=kind) != "" and said("/", kind=kind) != ""


@pytest.mark.parametrize("kind", [FOLDER, RUN])
def test_what_everybody_uses_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    home, work = tmp_path / "users" / "me", tmp_path / "jobs" / "work"
    for folder in (home, work):
        folder.mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    (work / "file").write_text("")
    assert "is the working directory" in said(".", kind=kind) and "is no folder" in said("file", kind=kind)
    for name in ("..", "../..", "/", str(home), str(home.parent)):
        assert "is your home, or a folder above it or the working directory" in said(name, kind=kind), name
    assert said(home / "new", kind=kind) == said("critic", kind=kind) == said("checkpoint-2", kind=kind) == ""


def test_a_mount_point_cannot_be_renamed_and_can_be_written_to() -> None:
    assert "is a mount point" in said("/proc") and "mount point" not in said("/proc", kind=RUN)


def test_above_a_link_is_above_where_it_leads(tmp_path: Path) -> None:
    model = finished(tmp_path / "models" / "base")
    (tmp_path / "link").symlink_to(model)
    assert "which is read" in said(tmp_path / "link" / ".." / "base", model, overwrite=True)
    assert "which is read" in said(tmp_path / "link" / "..", model, overwrite=True)


@pytest.mark.parametrize("kind", [FOLDER, RUN])
def test_an_input_is_no_output_under_any_of_its_names(tmp_path: Path, kind: Kind) -> None:
    model = finished(tmp_path / "model")
    link, above = tmp_path / "link", tmp_path / "above"
    link.symlink_to(model)
    above.symlink_to(tmp_path)
    names = (model, link, above / "model")
    for output, read in itertools.product(names, names):
        assert "is read" in said(output, read, overwrite=True, kind=kind), output
    assert said(tmp_path / "other", model, kind=kind) == said(model / "new", model, kind=kind) == ""


def test_what_a_run_leaves_alone_may_be_read_from_its_folder(tmp_path: Path) -> None:
    run, rewards = finished(tmp_path / "run"), tmp_path / "run" / "rewards" / "a.jsonl"
    rewards.parent.mkdir()
    rewards.write_text("{}")
    assert said(run, rewards, kind=RUN, overwrite=True) == "" and "which is read" in said(run, rewards, overwrite=True)
    for name in ("completions.jsonl", "checkpoint-2", "model.safetensors", "critic"):
        assert "which is read" in said(run, run / name, kind=RUN, overwrite=True), name


@pytest.mark.parametrize("kind", [FOLDER, RUN, FILE])
def test_nothing_is_written_among_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    """The next start would read it; but a project's folder holds its records, and its runs."""
    data = tmp_path / "data"
    data.mkdir()
    assert "lies in" in said(data / "out", data, kind=kind)
    assert said(tmp_path / "data-out", data, kind=kind) == ""
    monkeypatch.chdir(data)
    assert ("lies in" in said("out", data, kind=kind)) == (kind is not RUN)


@pytest.mark.parametrize("kind", [FOLDER, RUN])
@pytest.mark.parametrize("name", ["checkpoint-2", "critic", ".partial", ".result.partial"])
def test_a_part_of_a_run_is_no_place_for_another(tmp_path: Path, kind: Kind, name: str) -> None:
    run = finished(tmp_path / "run")
    part = finished(run / name)
    assert f"is part of the run in {run}" in said(part, kind=kind, overwrite=True)
    assert f"is part of the run in {run}" in said(run / "checkpoint-9", kind=kind)


def test_a_checkpoint_is_one_wherever_it_was_copied_to(tmp_path: Path) -> None:
    assert "is a checkpoint of a run" in said(
        finished(tmp_path / "copied", status="checkpoint"), kind=RUN, overwrite=True
    )


def test_a_file_is_not_its_own_input(tmp_path: Path) -> None:
    file, second, link = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    file.write_text("{}")
    write_down(file, file)
    os.link(file, second)
    write_down(second, second)
    link.symlink_to(file)
    for output in (file, second, link):
        assert "is read" in said(output, file, kind=FILE, overwrite=True), output


@pytest.mark.parametrize("kind", ["link", "broken link", "folder", "pipe", "mine", "edited"])
def test_a_file_of_somebodys_is_kept(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a"
    if kind in ("link", "broken link"):
        (tmp_path / "theirs").write_text("mine")
        file.symlink_to("theirs" if kind == "link" else "nowhere")
    elif kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.write_text("mine")
        if kind == "edited":
            write_down(file, file)
            file.write_text("mine, too")
    assert "hftune did not write it, or it was edited since" in said(file, kind=FILE, overwrite=True)


def test_an_earlier_file_is_replaced_where_that_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    write_down(file, file)
    assert "is there already" in said(file, kind=FILE) and "--overwrite_output_dir" in said(file, kind=FILE)
    assert said(file, kind=FILE, overwrite=True) == ""


def test_files_of_rewards_are_added_to_and_are_nobody_elses(tmp_path: Path) -> None:
    file, theirs = tmp_path / "rewards-0.tsv", tmp_path / "theirs"
    file.write_text("")
    assert said(tmp_path, kind=REWARDS) == ""
    file.rename(theirs)
    file.symlink_to(theirs)
    assert "rewards-0.tsv" in said(tmp_path, kind=REWARDS)
    file.unlink()
    os.link(theirs, file)
    assert "rewards-0.tsv" in said(tmp_path, kind=REWARDS)


def test_a_manifest_that_cannot_be_read_is_somebodys(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MANIFEST_NAME).write_text("{")
    assert f"hftune did not write: {MANIFEST_NAME}" in said(tmp_path / "run", kind=RUN, overwrite=True)
