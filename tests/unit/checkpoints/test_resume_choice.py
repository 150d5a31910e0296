"""What `--resume_from_checkpoint` means: anew, a folder, or the newest that is whole on every machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.checkpoints import integrity, resume
from hftune.checkpoints.integrity import read_record, record_contents, write_record
from hftune.checkpoints.resume import (
    FoundCheckpoint,
    find_checkpoint,
    newest_on_all_machines,
    report_nothing_left,
    requested_checkpoint,
    starts_fresh,
    unfinished_problems,
)
from hftune.digests import digests
from hftune.distributed import ranks
from hftune.preflight.facts import resolve
from hftune.preflight.rules.resume import check_resume, check_resumed_settings
from tests.unit.checkpoints.test_resume import make


def args(output: Path, asked: Any = "auto", **more: Any) -> Any:
    return SimpleNamespace(output_dir=str(output), resume_from_checkpoint=asked, **more)


def said() -> str:
    return "\n".join(str(notice) for notice in logging._notices)


@pytest.fixture
def asked_of_all(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What this process tells the others, and their common answer."""
    told: list[tuple[Any, list[int]]] = []
    answer: list[Any] = [None, []]

    def common(own: int | None, upto: list[int]) -> Any:
        told.append((own, sorted(upto)))
        return answer

    names = {"hftune.checkpoints.unshared_storage:newest_common_step": common}
    monkeypatch.setattr(resume, "on_demand", names.__getitem__)
    return SimpleNamespace(told=told, answer=answer)


def damaged(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    return folder


def test_all_machines_resume_from_the_one_that_all_have(tmp_path: Path, asked_of_all: Any) -> None:
    for step in (2, 4, 6, 8):
        make(tmp_path, step)
    damaged(tmp_path / "checkpoint-8")
    damaged(tmp_path / "checkpoint-4")
    asked_of_all.answer[:] = [2, ["a: checkpoint-6", "b: checkpoint-2"]]
    found = newest_on_all_machines(tmp_path)
    # Nothing newer than the newest whole one, and nothing that is not whole.
    assert asked_of_all.told == [(6, [2, 6])]
    assert found.folder == tmp_path / "checkpoint-2" and found.disagreement is None
    assert [folder.name for folder, _ in found.skipped] == ["checkpoint-8"]
    assert "a: checkpoint-6; b: checkpoint-2): all resume from checkpoint-2" in said()


def test_machines_that_agree_say_nothing(tmp_path: Path, asked_of_all: Any) -> None:
    make(tmp_path, 0)
    asked_of_all.answer[:] = [0, []]
    assert newest_on_all_machines(tmp_path).folder == tmp_path / "checkpoint-0", "step 0 is a step"
    assert asked_of_all.told == [(0, [0])] and said() == ""
    asked_of_all.answer[:] = [None, []]
    assert newest_on_all_machines(tmp_path / "empty") == FoundCheckpoint()
    assert asked_of_all.told[1] == (None, [])


def test_machines_that_have_none_in_common(tmp_path: Path, asked_of_all: Any) -> None:
    asked_of_all.answer[:] = [None, ["a: none", "b: checkpoint-2"]]
    found = newest_on_all_machines(tmp_path)
    assert found == FoundCheckpoint(disagreement="a: none; b: checkpoint-2")
    (problem,) = found.problems
    assert "no checkpoint is whole on every machine: a: none; b: checkpoint-2" in str(problem)


def test_one_process_looks_for_its_machine(tmp_path: Path, asked_of_all: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, 5)
    monkeypatch.setattr(ranks, "local_rank", lambda: 1)
    asked_of_all.answer[:] = [5, []]
    assert newest_on_all_machines(tmp_path).folder == tmp_path / "checkpoint-5"
    assert asked_of_all.told == [(None, [])]


def test_all_are_asked_once(tmp_path: Path, asked_of_all: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, 5)
    asked_of_all.answer[:] = [5, []]
    given = args(tmp_path)
    assert requested_checkpoint(given).folder == tmp_path / "checkpoint-5" and asked_of_all.told == []
    monkeypatch.setattr(ranks, "is_distributed", lambda: True)
    given = args(tmp_path)
    first = requested_checkpoint(given)
    assert requested_checkpoint(given) is first and len(asked_of_all.told) == 1


@pytest.mark.parametrize("asked", ["auto", "named"])
@pytest.mark.parametrize("local_rank", [0, 1])
def test_the_bytes_of_a_checkpoint_are_read_once_a_machine(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, asked: str, local_rank: int
) -> None:
    folder = make(tmp_path / "out", 5)
    torch.save({}, folder / "optimizer.pt")
    write_record(folder, {"step": 5})
    record_contents(folder)
    argv = ["--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path / "out"), "--train_file_dir", "."]
    argv += ["--resume_from_checkpoint", asked if asked == "auto" else str(folder), "--use_cpu", "True"]
    arguments = parse_arguments("sft", argv)
    read: list[str] = []
    monkeypatch.setattr(integrity, "digests", lambda files, **how: read.extend(map(str, files)) or digests(files))
    monkeypatch.setattr(ranks, "local_rank", lambda: local_rank)
    facts = resolve("sft", arguments)
    assert list(check_resume(facts)) == [] and find_checkpoint(facts.training_args) == str(folder)
    list(check_resumed_settings(facts))
    looks = local_rank == 0 or asked == "auto"  # one process alone looks for itself
    assert sorted(read) == sorted(map(str, recorded_files(folder))) * looks


def recorded_files(folder: Path) -> list[Path]:
    return [folder / name for name in (read_record(folder) or {})["digests"]]


def test_what_the_first_process_of_a_machine_found_holds_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "gathered_objects", lambda own: ["model.safetensors is missing", own])
    (problem,) = requested_checkpoint(args(tmp_path, str(make(tmp_path, 5)))).problems
    assert "nothing can resume" in str(problem) and "model.safetensors is missing" in str(problem)


@pytest.mark.parametrize("asked", [None, "", "no", "None", "FALSE", False])
def test_anew(asked: Any, tmp_path: Path) -> None:
    make(tmp_path, 5)
    assert starts_fresh(args(tmp_path, asked)) and requested_checkpoint(args(tmp_path, asked)) == FoundCheckpoint()
    assert find_checkpoint(args(tmp_path, asked)) is None and said() == ""


@pytest.mark.parametrize("asked", ["auto", "LAST", "true", True])
def test_the_newest(asked: Any, tmp_path: Path) -> None:
    assert find_checkpoint(args(tmp_path, asked)) is None
    assert f"no checkpoint in {tmp_path}; starting anew" in said()
    torch.save({}, make(tmp_path, 5) / "optimizer.pt")
    damaged(make(tmp_path, 9))
    assert find_checkpoint(args(tmp_path, asked)) == str(tmp_path / "checkpoint-5")
    assert f"{tmp_path}/checkpoint-9 is skipped: " in said() and f"resuming from {tmp_path}/checkpoint-5" in said()


def test_a_folder_that_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    found = requested_checkpoint(args(tmp_path / "out", str(tmp_path / "kept")))
    assert found == FoundCheckpoint(tmp_path / "kept")
    torch.save({}, make(tmp_path, 5) / "optimizer.pt")
    assert find_checkpoint(args(tmp_path / "out", str(tmp_path / "checkpoint-5"))) == str(tmp_path / "checkpoint-5")
    assert said() == "", "who names a folder knows it"


@pytest.mark.parametrize(
    ("steps", "epochs", "over"),
    [(5, 9, True), (6, 9, False), (4, 9, True), (-1, 0.5, True), (0, 0.5, True), (-1, 0.6, False), (-1, 0.4, True)],
)
def test_nothing_left_is_said(steps: int, epochs: float, over: bool, tmp_path: Path) -> None:
    """The checkpoint has 5 steps, half an epoch, behind it."""
    folder = make(tmp_path, 5)
    report_nothing_left(SimpleNamespace(max_steps=steps, num_train_epochs=epochs), str(folder))  # type: ignore[arg-type]
    assert ("nothing is left to train" in said()) is over
    if over:
        goal = f"raise --max_steps {steps}" if steps > 0 else f"raise --num_train_epochs {epochs:g}"
        assert f"{folder} has 5 steps (0.5 epochs) behind it; {goal}" in said()


def test_a_fresh_run_in_a_folder_with_checkpoints(tmp_path: Path) -> None:
    def problems(**changes: Any) -> str:
        fields = {"do_train": True, "overwrite_output_dir": False, "output_dir": str(tmp_path)}
        given = SimpleNamespace(**fields | {"resume_from_checkpoint": None} | changes)
        return "\n".join(map(str, unfinished_problems(given)))  # type: ignore[arg-type]

    damaged(make(tmp_path, 7))
    assert problems() == ""
    folder = make(tmp_path, 5)
    assert f"{tmp_path} holds a run that reached checkpoint-5" in problems()
    assert (
        "in another --output_dir: --warm_start" in problems() and "renames them (checkpoint-5.replaced)" in problems()
    )
    (folder / "optimizer.pt").touch()
    assert "to resume it: --resume_from_checkpoint auto" in problems()
    for changes in ({"do_train": False}, {"overwrite_output_dir": True}, {"output_dir": None}):
        assert problems(**changes) == ""
    assert problems(resume_from_checkpoint="none") == ""
    (tmp_path / "hftune.json").write_text('{"status": "complete"}')
    assert problems() == ""
