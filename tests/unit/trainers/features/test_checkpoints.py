"""`--async_save`: training goes on while a checkpoint is published; what goes wrong there is not lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.integrity import altered_files, checkpoint_fault, read_record
from hftune.trainers.features import checkpoints
from hftune.trainers.stage_trainer import StageTrainer
from tests.unit.models.adapting import load

ROWS = [{"input_ids": list(range(at, at + 12)), "labels": list(range(at, at + 12))} for at in range(3, 35)]


class PlainTrainer(StageTrainer, Trainer):
    pass


class Seen(TrainerCallback):
    """The steps that have ended."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.third = threading.Event()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.append(state.global_step)
        if state.global_step == 3:
            self.third.set()


def _trainer(model: Path, folder: Path, *flags: str) -> tuple[Any, Seen]:
    argv = ["--model_name_or_path", str(model), "--output_dir", str(folder), "--gradient_checkpointing", "0"]
    argv += ["--learning_rate", "1e-2", "--max_steps", "4", "--save_steps", "2", "--save_total_limit", "1"]
    argv += ["--per_device_train_batch_size", "4", "--logging_steps", "1", "--report_to", "none"]
    _, _, _, training_args = parse_arguments("pt", [*argv, "--disable_tqdm", "1", *flags])
    training_args.packing = False
    seen = Seen()
    return PlainTrainer(model=load(model), args=training_args, train_dataset=ROWS, callbacks=[seen]), seen


def test_training_goes_on_while_a_checkpoint_is_published(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, seen = _trainer(tiny_model, tmp_path, "--async_save", "True")
    publish, waited = checkpoints.publish_checkpoint, []

    def publish_late(aside: Path, final: Path, about: dict[str, Any], *more: Any) -> None:
        if final.name == "checkpoint-2":
            waited.append(seen.third.wait(60))
        publish(aside, final, about, *more)

    monkeypatch.setattr(checkpoints, "publish_checkpoint", publish_late)
    trainer.train()
    assert waited == [True], "the third step ended before the second's checkpoint was published"
    assert [folder.name for folder in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    assert checkpoint_fault(tmp_path / "checkpoint-4") is None and not list(tmp_path.glob(".*"))


def test_without_it_training_waits(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, seen = _trainer(tiny_model, tmp_path)
    publish, at = checkpoints.publish_checkpoint, []
    monkeypatch.setattr(
        checkpoints, "publish_checkpoint", lambda *given: at.append(list(seen.steps)) or publish(*given)
    )
    trainer.train()
    assert at == [[1, 2], [1, 2, 3, 4]] and threading.active_count() >= 1


def test_it_goes_on_while_a_checkpoint_is_read_again(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, seen = _trainer(tiny_model, tmp_path)
    record, waited = checkpoints.record_contents, []

    def record_late(folder: Path, moved: Any) -> None:
        if folder.name == "checkpoint-2":
            waited.append(folder.is_dir() and seen.third.wait(60))
        record(folder, moved)

    monkeypatch.setattr(checkpoints, "record_contents", record_late)
    trainer.train()
    assert waited == [True], "the third step ended before the digests of the second's checkpoint were known"
    saved = tmp_path / "checkpoint-4"
    known = read_record(saved) or {}
    assert known["digests"].keys() == known["files"].keys() and not altered_files(saved)
    (saved / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes()[:-1] + b"!")
    assert altered_files(saved) == ["model.safetensors"]


@pytest.mark.parametrize("name", ["checkpoint-2", "checkpoint-4"])
def test_a_full_disk_ends_the_run(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    trainer, seen = _trainer(tiny_model, tmp_path, "--async_save", "True")
    publish = checkpoints.publish_checkpoint

    def fails(aside: Path, final: Path, about: dict[str, Any], *more: Any) -> None:
        if final.name == name:
            raise OSError(28, "No space left on device")
        publish(aside, final, about, *more)

    monkeypatch.setattr(checkpoints, "publish_checkpoint", fails)
    with pytest.raises(OSError, match="No space left"):
        trainer.train()
    assert seen.steps[-1] == 4, "it is raised by the next save, or by the end of training"
    assert not (tmp_path / name).exists()


def test_a_problem_is_raised_once() -> None:
    feature, done = checkpoints.Checkpoints(), list[int]()
    feature.wait()
    feature._published = feature._publisher.submit(lambda: done.append(1 // 0))
    with pytest.raises(ZeroDivisionError):
        feature.wait()
    feature._published = feature._publisher.submit(lambda: done.append(2))
    feature.wait()
    assert done == [2]
