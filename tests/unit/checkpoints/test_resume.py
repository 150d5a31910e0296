"""Checkpoints: which are whole, which one a run resumes from, which may be removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from hftune.checkpoints.file_records import result_files
from hftune.checkpoints.integrity import (
    RECORD_NAME,
    TRAINER_STATE,
    checkpoint_fault,
    read_record,
    record_contents,
    write_record,
)
from hftune.checkpoints.resume import (
    PARTIAL,
    FoundCheckpoint,
    fault_of,
    newest_whole,
    remove_leftovers,
    remove_old,
    rename_earlier_run,
    restore_checkpoints,
    steps_done,
)
from hftune.constants import MANIFEST_NAME
from hftune.errors import ArgumentError
from hftune.publishing import locks
from hftune.publishing.folder import make_work


def make(output: Path, step: int, *, record: bool = True, engine: bool = False) -> Path:
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    save_file({"weight": torch.ones(3, 3)}, folder / "model.safetensors")
    (folder / TRAINER_STATE).write_text(json.dumps({"global_step": step, "epoch": step / 10}))
    if engine:
        (folder / f"global_step{step}").mkdir()
        (folder / f"global_step{step}" / "mp_rank_00_model_states.pt").write_bytes(b"x" * 10)
        (folder / "latest").write_text(f"global_step{step}")
    if record:
        write_record(folder, {"step": step, "world_size": 2})
        record_contents(folder)
    return folder


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("engine", [True, False])
def test_whole(tmp_path: Path, record: bool, engine: bool) -> None:
    folder = make(tmp_path, 5, record=record, engine=engine)
    assert checkpoint_fault(folder) is None
    assert steps_done(folder) == (5, 0.5)


def test_the_record(tmp_path: Path) -> None:
    record = read_record(make(tmp_path, 5, engine=True))
    assert record is not None and record["step"] == 5 and record["world_size"] == 2
    assert set(record["files"]) == {
        "model.safetensors",
        TRAINER_STATE,
        "latest",
        "global_step5/mp_rank_00_model_states.pt",
    }


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


FAULTS = {
    "a file is missing": (lambda folder: (folder / "model.safetensors").unlink(), True, "model.safetensors is missing"),
    "a file is cut off": (lambda folder: cut(folder / "model.safetensors"), True, "instead of"),
    "the record is cut off": (lambda folder: cut(folder / RECORD_NAME), True, "cannot be read"),
    "no state": (lambda folder: (folder / TRAINER_STATE).unlink(), False, f"{TRAINER_STATE} is missing"),
    "half a state": (lambda folder: cut(folder / TRAINER_STATE), False, f"{TRAINER_STATE} is cut off"),
    "half a header": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{"),
        False,
        "cannot be read",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), False, "no weights"),
    "empty tensors": (
        lambda folder: save_file({"weight": torch.ones(0)}, folder / "model.safetensors"),
        False,
        "empty tensors",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(tmp_path: Path, fault: str) -> None:
    damage, record, says = FAULTS[fault]
    folder = make(tmp_path, 5, record=record)
    damage(folder)
    assert says in str(checkpoint_fault(folder))


def test_the_newest_whole_one_by_number_not_by_name(tmp_path: Path) -> None:
    for step in (5, 10, 100):
        make(tmp_path, step)
    cut(tmp_path / "checkpoint-100" / "model.safetensors")
    (tmp_path / "checkpoint-best").mkdir()
    found = newest_whole(tmp_path)
    assert found.folder == tmp_path / "checkpoint-10"
    assert [folder.name for folder, _ in found.skipped] == ["checkpoint-100"]


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "nowhere").folder is None


def test_removal_counts_whole_ones_and_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        make(tmp_path, step)
    cut(tmp_path / "checkpoint-5" / "model.safetensors")
    gone = remove_old(tmp_path, 2, best=str(tmp_path / "checkpoint-1"))
    assert {folder.name for folder in gone} == {"checkpoint-2", "checkpoint-3"}
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-4", "checkpoint-5"]


@pytest.mark.parametrize("limit, left", [(None, 3), (0, 3), (1, 1), (2, 2), (7, 3)])
def test_limits(tmp_path: Path, limit: int | None, left: int) -> None:
    for step in (1, 2, 3):
        make(tmp_path, step)
    remove_old(tmp_path, limit, best=None)
    assert len(list(tmp_path.iterdir())) == left
    assert (tmp_path / "checkpoint-3").is_dir()


def test_leftovers(tmp_path: Path) -> None:
    make(tmp_path, 3)
    (make_work(tmp_path / PARTIAL) / "checkpoint-4").mkdir()
    (tmp_path / ".checkpoint-2.old").mkdir()
    remove_leftovers(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == ["checkpoint-3"]


@pytest.mark.parametrize("foreign", ["notes.txt", "below/notes.txt", "no record"])
def test_checkpoints_with_something_of_somebody_else_are_never_deleted(tmp_path: Path, foreign: str) -> None:
    folders = [make(tmp_path, step, record=foreign != "no record" or step != 2) for step in (1, 2, 3, 4)]
    if foreign != "no record":
        (folders[1] / foreign).parent.mkdir(exist_ok=True)
        (folders[1] / foreign).write_text("mine")
    gone = remove_old(tmp_path, 1, None)
    assert gone == [folders[2], folders[0]] and folders[1].is_dir() and folders[3].is_dir()


@pytest.mark.parametrize("kind", ["link", "file", "somebody's folder", "somebody's checkpoint"])
def test_what_has_the_name_of_the_work_folder_is_left_alone(tmp_path: Path, kind: str) -> None:
    victim, aside = tmp_path / "victim", tmp_path / "out" / PARTIAL
    victim.mkdir()
    (victim / "thesis").write_text("mine")
    aside.parent.mkdir()
    if kind == "link":
        aside.symlink_to(victim)
    elif kind == "file":
        aside.write_text("mine")
    elif kind == "somebody's folder":
        victim.rename(aside)
    else:
        aside.mkdir()
        victim.rename(aside / "checkpoint-1")
    with pytest.raises(ArgumentError, match="in the way"):
        remove_leftovers(aside.parent)
    assert [path.read_text() for path in tmp_path.rglob("thesis")] == ["mine"] and aside.exists()


def test_a_checkpoint_in_the_middle_of_an_exchange_comes_back(tmp_path: Path) -> None:
    make(tmp_path, 1).rename(tmp_path / ".checkpoint-1.old")
    half = make(tmp_path, 2)
    half.rename(tmp_path / ".checkpoint-2.old")
    (tmp_path / ".checkpoint-2.old" / "model.safetensors").unlink()
    make(tmp_path, 3)
    shutil.copytree(tmp_path / "checkpoint-3", tmp_path / ".checkpoint-3.old")
    remove_leftovers(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-3"]
    assert checkpoint_fault(tmp_path / "checkpoint-1") is None


@pytest.mark.parametrize("asked, restored", [("auto", True), ("none", True), ("checkpoint-2", True), ("busy", False)])
def test_it_is_back_before_the_checkpoint_to_resume_from_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, restored: bool
) -> None:
    """Not where another run holds the folder: the exchange may be its own, and about to end."""
    monkeypatch.setattr(locks, "OUTPUT_SECONDS", 0.1)
    make(tmp_path, 1)
    make(tmp_path, 2).rename(tmp_path / ".checkpoint-2.old")
    make(tmp_path, 3).rename(tmp_path / ".checkpoint-3.old")
    shutil.copytree(tmp_path / ".checkpoint-3.old", tmp_path / ".checkpoint-3.old-1")
    (make_work(tmp_path / PARTIAL) / "checkpoint-4").mkdir()
    elsewhere, flag = tmp_path, "auto"
    if asked.startswith("checkpoint"):
        elsewhere, flag = tmp_path / "another", str(tmp_path / asked)
    args = SimpleNamespace(output_dir=str(elsewhere), resume_from_checkpoint=None if asked == "none" else flag)
    held = locks.lock_folder(tmp_path) if asked == "busy" else None
    restore_checkpoints(args)  # type: ignore[arg-type]
    if held is not None:
        locks.release_lock(held)
    assert newest_whole(tmp_path).folder == tmp_path / f"checkpoint-{3 if restored else 1}"
    assert (tmp_path / ".checkpoint-3.old-1").exists() and (tmp_path / PARTIAL / "checkpoint-4").exists()
    assert not (tmp_path / locks.OUTPUT_LOCK).exists()


@pytest.mark.parametrize(
    "name", [".checkpoint-notes.old", ".checkpoint-3.old", ".checkpoint-3.old-1", ".checkpoint-9.old"]
)
@pytest.mark.parametrize("kind", ["no record", "added", "link"])
def test_folders_of_others_with_the_name_of_a_discarded_checkpoint_stay(tmp_path: Path, name: str, kind: str) -> None:
    checkpoint = make(tmp_path, 3)
    victim = tmp_path / name
    if kind == "added":
        shutil.copytree(checkpoint, victim)
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        victim.symlink_to(tmp_path / "elsewhere")
    victim.mkdir(exist_ok=True)
    (victim / "thesis").write_text("mine")
    remove_leftovers(tmp_path)
    assert (victim / "thesis").read_text() == "mine" and victim.is_symlink() == (kind == "link")
    # Nor is it in the way of a checkpoint that is deleted under that name.
    make(tmp_path, 4)
    assert remove_old(tmp_path, 1, None) == [checkpoint] and not checkpoint.exists()
    assert (victim / "thesis").read_text() == "mine"


@pytest.mark.parametrize("cut", ["weights", "record"])
def test_a_deletion_that_is_cut_short_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    make(tmp_path, 1, engine=True)
    make(tmp_path, 2)
    name, unlink = {"weights": "model.safetensors", "record": RECORD_NAME}[cut], Path.unlink

    def failing(file: Path, missing_ok: bool = False) -> None:
        if file.name == name:
            raise OSError("cut short")
        unlink(file, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", failing)
        remove_old(tmp_path, 1, None)
    left = tmp_path / ".checkpoint-1.old"
    assert (left / RECORD_NAME).exists() and not (tmp_path / "checkpoint-1").exists(), "its record goes last"
    remove_leftovers(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint-2"]


def said(folder: Path) -> str:
    return "\n".join(str(problem) for problem in FoundCheckpoint(folder, fault=fault_of(folder)).problems)


def test_an_output_folder_is_no_checkpoint(tmp_path: Path) -> None:
    """What it lacks was never there: nothing is said of --save_only_model."""
    output = tmp_path / "out"
    checkpoint = make(output, 5)
    (checkpoint / "optimizer.pt").touch()
    shutil.copy(checkpoint / "model.safetensors", output)
    shutil.copy(checkpoint / TRAINER_STATE, output)
    message = said(output)
    assert f"{output} is an output folder, not a checkpoint" in message
    assert f"give its newest one: --resume_from_checkpoint {checkpoint}; or auto" in message
    shutil.rmtree(checkpoint)
    (output / MANIFEST_NAME).write_text("{}")
    assert f"it holds none; to begin anew with its weights, in another --output_dir: --warm_start {output}" in said(
        output
    )


def test_a_checkpoint_without_its_optimizer_says_so(tmp_path: Path) -> None:
    assert "--save_only_model" in said(make(tmp_path, 5))
    renamed = make(tmp_path, 6).rename(tmp_path / "kept")
    assert "--save_only_model" in said(renamed), "a checkpoint under another name is one"


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    make(tmp_path, 5)
    message = said(tmp_path / "checkpont-5")
    assert (
        f"there is no folder {tmp_path}/checkpont-5" in message and f"did you mean {tmp_path}/checkpoint-5?" in message
    )


def test_checkpoints_and_logs_of_an_earlier_run_are_renamed(tmp_path: Path) -> None:
    """Nothing is lost, and `auto` does not take them for those of the run that begins."""
    folders = [make(tmp_path, step) for step in (5, 20)]
    (tmp_path / "checkpoint-5.replaced").mkdir()
    (tmp_path / "progress.jsonl").write_text("old")
    rename_earlier_run(tmp_path, ["progress.jsonl", "completions.jsonl"])
    assert not any(folder.exists() for folder in folders) and newest_whole(tmp_path).folder is None
    assert checkpoint_fault(tmp_path / "checkpoint-20.replaced") is None
    assert len(list(tmp_path.glob("checkpoint-5.replaced*"))) == 2, "one that was there already stays"
    assert (tmp_path / "progress.jsonl.replaced").read_text() == "old" and not (tmp_path / "progress.jsonl").exists()
    assert result_files(tmp_path) == {}, "logs are no result"


def test_a_checkpoint_whose_bytes_have_changed_is_not_resumed(tmp_path: Path) -> None:
    """Of the same sizes, so that only reading them tells."""
    older, newer = make(tmp_path, 5), make(tmp_path, 10)
    file = newer / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert checkpoint_fault(newer) is None
    found = newest_whole(tmp_path)
    assert found.folder == older
    assert found.skipped == [(newer, "model.safetensors no longer holds what was written")]
    assert "model.safetensors no longer holds what was written" in said(newer)
    assert "no longer holds" not in said(older)


def test_a_link_to_a_checkpoint_is_never_deleted(tmp_path: Path) -> None:
    """Somebody resumes from another run's; what it holds is that run's."""
    other = make(tmp_path / "other", 1)
    make(tmp_path, 2)
    (tmp_path / "checkpoint-1").symlink_to(other)
    assert remove_old(tmp_path, 1, None) == [] and checkpoint_fault(other) is None
