"""When a stage is skipped, goes on, or runs again, and the reason that is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hftune.checkpoints.manifest import RUNNING, read_manifest, write_manifest
from hftune.tools.pipeline.state import AGAIN, DAMAGED, DONE, RESUME, START, state_of
from hftune.tools.pipeline.steps import Step
from tests.unit.tools.pipeline.files import finish, model, steps


@pytest.fixture
def made(tmp_path: Path) -> list[Step]:
    """sft and its merge, as not yet run."""
    model(tmp_path / "base")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("one\n")
    return steps(tmp_path, _text(tmp_path))


def _text(folder: Path, more: str = "") -> str:
    stage = f"{{use_peft: true, train_file_dir: {folder}/data, learning_rate: 1e-3{more}}}"
    return f"model: {folder}/base\noutput_dir: {folder}/out\nstages:\n  sft: {stage}\n"


def test_from_nothing_to_finished(made: list[Step]) -> None:
    sft, merge = made
    assert state_of(sft).verdict == START
    finish(sft, RUNNING)
    assert state_of(sft).verdict == RESUME
    finish(sft)
    finish(merge)
    assert state_of(sft).verdict == DONE and state_of(merge).verdict == DONE


BEST = ", load_best_model_at_end: true"


@pytest.mark.parametrize(
    ("then", "now", "reason"),
    [
        ("", ", seed: 1", "seed 1 is new"),
        (", seed: 1", "", "seed 1 was taken out"),
        (", seed: 1", ", seed: 2", "seed was 1, is 2"),
        ("", ", save_total_limit: 2, report_to: none, logging_steps: 5, save_steps: 7, hang_timeout: 60", None),
        (f"{BEST}, save_steps: 5", f"{BEST}, save_steps: 7", "save_steps was 5, is 7"),
    ],
)
def test_arguments(made: list[Step], tmp_path: Path, then: str, now: str, reason: str | None) -> None:
    finish(steps(tmp_path, _text(tmp_path, then))[0])
    state = state_of(steps(tmp_path, _text(tmp_path, now))[0])
    assert state.reasons == ((reason,) if reason else ()) and state.verdict == (AGAIN if reason else DONE)


def test_data(made: list[Step], tmp_path: Path) -> None:
    finish(made[0])
    file = tmp_path / "data" / "a.jsonl"
    os.utime(file, (1, 1))
    assert state_of(made[0]).verdict == DONE, "touched, the same contents"
    file.write_text("two\n")
    assert state_of(made[0]).reasons == (f"{file} has other contents",)
    file.write_text("one\n")
    (tmp_path / "data" / "b.jsonl").write_text("more\n")
    assert state_of(made[0]).reasons == (f"{tmp_path}/data/b.jsonl is new",)
    (tmp_path / "data" / "b.jsonl").unlink()
    file.unlink()
    assert state_of(made[0]).reasons == (f"{file} is gone",)


def test_parents(made: list[Step], tmp_path: Path) -> None:
    sft, merge = made
    finish(sft)
    finish(merge)
    (tmp_path / "base" / "model.safetensors").write_text("other")
    assert state_of(sft).reasons == (f"the model in {tmp_path}/base is another one",)
    (sft.folder / "model.safetensors").write_text("other")
    assert state_of(merge).reasons[0] == f"the adapter in {sft.folder} is another one"


def test_another_version_trains_nothing_again(made: list[Step]) -> None:
    finish(made[0], hftune="0.0.1")
    assert state_of(made[0]).verdict == DONE


def test_a_result_that_was_altered_is_no_reason_to_train_again(made: list[Step]) -> None:
    finish(made[0])
    file = made[0].folder / "model.safetensors"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    state = state_of(made[0])
    assert state.verdict == DAMAGED and state.reasons == (f"{file} has other contents",)


def test_checkpoints_of_an_unknown_run_are_not_gone_on_from(made: list[Step]) -> None:
    (made[0].folder / "checkpoint-5").mkdir(parents=True)
    assert state_of(made[0]).verdict == AGAIN


def test_a_manifest_without_inputs_is_made_again(made: list[Step]) -> None:
    finish(made[0])
    manifest = read_manifest(made[0].folder)
    assert manifest is not None
    del manifest["inputs"]
    write_manifest(made[0].folder, manifest)
    assert state_of(made[0]).verdict == AGAIN
