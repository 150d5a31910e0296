"""The last steps of a run: an evaluation that is not made twice, and a run that was told to stop."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune import stage
from hftune.checkpoints.manifest import INTERRUPTED, is_complete, read_manifest, write_manifest
from hftune.errors import ArgumentError, Preempted
from hftune.publishing.folder import make_work
from hftune.trainers.preemption import EvaluationStopped
from hftune.trainers.result import remove_new_folder_on_failure

pytestmark = pytest.mark.long


class Trainer:
    """What the last steps ask of a trainer."""

    def __init__(self, output: Path, step: int = 6, **args: Any) -> None:
        self.state = SimpleNamespace(global_step=step, best_global_step=None)
        given = {"output_dir": str(output), "do_train": True, "load_best_model_at_end": False}
        self.args = SimpleNamespace(**given, resume_from_checkpoint=None, **args)
        self.checkpoints = SimpleNamespace(wait_together=lambda: None)
        self.model, self.evaluated, self.saved = "model", 0, 0
        self.current_evaluation: dict[str, float] | None = {"eval_loss": 1.0}

    def evaluate(self) -> dict[str, float]:
        self.evaluated += 1
        return {"eval_loss": 2.0}

    def save_checkpoint(self) -> None:
        self.saved += 1
        (Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}").mkdir()


def test_the_last_evaluation_is_not_made_twice(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    assert stage._last_evaluation(trainer, {}) == {"eval_loss": 1.0} and not trainer.evaluated


@pytest.mark.parametrize("what", ["none", "nothing is trained"])
def test_it_is_made_where_the_weights_are_others(tmp_path: Path, what: str) -> None:
    trainer = Trainer(tmp_path)
    if what == "none":
        trainer.current_evaluation = None
    else:
        trainer.args.do_train = False
    assert stage._last_evaluation(trainer, {}) == {"eval_loss": 2.0} and trainer.evaluated == 1


def test_one_that_is_left_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(self: Trainer) -> None:
        raise EvaluationStopped

    monkeypatch.setattr(Trainer, "evaluate", left)
    trainer = Trainer(tmp_path)
    trainer.current_evaluation = None
    with pytest.raises(Preempted, match="stopped at step 6, checkpoint-6 is saved"):
        stage._last_evaluation(trainer, {"stage": "sft"})


def test_a_stopped_run_has_a_checkpoint_and_says_so_in_its_manifest(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    stop = stage._stopped(trainer, {"stage": "sft", "status": "running"})
    assert trainer.saved == 1 and (read_manifest(tmp_path) or {})["status"] == INTERRUPTED
    assert not is_complete(tmp_path) and (read_manifest(tmp_path) or {})["steps"] == 6
    assert str(stop) == (
        "stopped at step 6, checkpoint-6 is saved: the same command with --resume_from_checkpoint auto resumes"
    )
    trainer.args.resume_from_checkpoint = "auto"
    assert str(stage._stopped(trainer, {})).endswith("checkpoint-6 is saved: the same command resumes")
    assert trainer.saved == 1, "the Trainer had saved it"


def test_an_earlier_result_stays_what_it_was(tmp_path: Path) -> None:
    """With --overwrite_output_dir a result is replaced by a finished one only."""
    write_manifest(tmp_path, {"stage": "sft", "status": "complete"})
    stage._stopped(Trainer(tmp_path), {"stage": "sft", "status": "running"})
    assert is_complete(tmp_path)


def test_best_weights_are_no_checkpoint_of_the_last_step(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.args.load_best_model_at_end = True
    assert "checkpoints are kept" in str(stage._stopped(trainer, {})) and not trainer.saved


def test_before_the_first_step_there_is_nothing_to_save(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=0)
    assert "nothing to save" in str(stage._stopped(trainer, {})) and not trainer.saved


def test_a_folder_that_is_new_and_empty_goes_with_a_run_that_did_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Any] = []
    monkeypatch.setattr("hftune.trainers.result.exit_hooks", ends)
    remove_new_folder_on_failure(tmp_path)
    assert not ends, "one that was there stays"
    new = tmp_path / "new"
    remove_new_folder_on_failure(new)
    new.mkdir()
    (new / "result").touch()
    ends[0](None)
    assert new.is_dir(), "it holds something"
    (new / "result").unlink()
    ends[0](KeyboardInterrupt())
    assert not new.exists()


@pytest.mark.parametrize("anew", [True, False])
def test_what_a_killed_run_left_goes_when_training_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    monkeypatch.setattr(stage, "_open_log", lambda args: None)
    monkeypatch.setattr(stage, "_write_samples", lambda *given: None)
    (tmp_path / "checkpoint-6").mkdir()
    make_work(tmp_path / ".partial")
    stage._begin(Trainer(tmp_path).args, Trainer(tmp_path), None, {"status": "running"}, anew=anew)
    assert not (tmp_path / ".partial").exists() and (tmp_path / "hftune.json").exists()
    # Somebody else's folder stays, and is no reason to stop before a checkpoint is written.
    (tmp_path / ".partial").mkdir()
    (tmp_path / ".partial" / "thesis").write_text("mine")
    stage._begin(Trainer(tmp_path).args, Trainer(tmp_path), None, {"status": "running"}, anew=anew)
    assert (tmp_path / ".partial" / "thesis").read_text() == "mine"


def test_neither_training_nor_evaluation_is_an_error() -> None:
    assert "--do_eval" in stage.nothing_to_do().render()


def recorded(records: str, rate: float = 0.1) -> dict[str, Any]:
    data = {"train": {"fingerprint": records, "files": [f"{records}.jsonl"]}}
    return {"data": data, "arguments": {"training": {"learning_rate": rate, "save_steps": 1}}, "command": ["x"]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_manifest(tmp_path, recorded("first"))
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4}')
    return tmp_path


def test_a_resumed_run_keeps_its_history_and_says_what_is_otherwise(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hftune.logging._notices", said := [])
    args: Any = SimpleNamespace(resume_anyway=False)
    found = stage._resumed(args, recorded("first"), checkpoint)
    assert [leg["until_step"] for leg in found["history"]] == [4] and said == []
    found = stage._resumed(args, recorded("first", 0.2), checkpoint)
    assert found["history"][0]["changed"] == {"learning_rate": [0.1, 0.2]}
    assert said == [f"{checkpoint} was made with other arguments: --learning_rate"]
    (checkpoint / "hftune.json").unlink()
    assert stage._resumed(args, recorded("second"), checkpoint) == recorded("second"), "of another tool"


def test_other_records_are_refused_or_recorded(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hftune.logging._notices", said := [])
    args: Any = SimpleNamespace(resume_anyway=False)
    with pytest.raises(ArgumentError, match=r"other records than this run has \(first.jsonl; now second.jsonl\)") as no:
        stage._resumed(args, recorded("second"), checkpoint)
    assert f"--warm_start {checkpoint}" in str(no.value) and "--resume_anyway" in str(no.value)
    args.resume_anyway = True
    found = stage._resumed(args, recorded("second"), checkpoint)
    assert found["history"][0]["data"]["train"]["files"] == ["first.jsonl"] and "is resumed all the same" in said[0]
