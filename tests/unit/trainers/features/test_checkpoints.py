"""Checkpoints: written aside, published whole; with `--async_save` training continues meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerCallback

from hftune import digests, logging
from hftune.checkpoints.integrity import (
    RECORD_NAME,
    TRAINER_STATE,
    altered_files,
    checkpoint_fault,
    read_record,
    record_contents,
)
from hftune.checkpoints.resume import PARTIAL, checkpoints
from hftune.distributed import nodes, ranks
from hftune.publishing.folder import is_ours
from hftune.trainers.features import checkpoints as feature_module
from hftune.trainers.features.checkpoints import (
    Checkpoints,
    publish_checkpoint,
    remember_best,
    writes_in_several_places,
)
from hftune.trainers.features.feature import Feature
from tests.unit.checkpoints.test_resume import make
from tests.unit.trainers.features import made_up
from tests.unit.trainers.tiny import plain_trainer


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
    seen = Seen()
    return plain_trainer(model, folder, "--save_total_limit", "1", *flags, callbacks=[seen]), seen


def test_training_goes_on_while_a_checkpoint_is_published(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, seen = _trainer(tiny_model, tmp_path, "--async_save", "True")
    publish, waited = feature_module.publish_checkpoint, []

    def publish_late(aside: Path, final: Path, about: dict[str, Any], *more: Any) -> None:
        if final.name == "checkpoint-2":
            waited.append(seen.third.wait(60))
        publish(aside, final, about, *more)

    monkeypatch.setattr(feature_module, "publish_checkpoint", publish_late)
    trainer.train()
    assert waited == [True], "the third step ended before the second's checkpoint was published"
    assert [folder.name for folder in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    assert checkpoint_fault(tmp_path / "checkpoint-4") is None and not list(tmp_path.glob(".*"))


def test_without_it_training_waits(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, seen = _trainer(tiny_model, tmp_path)
    publish, at = feature_module.publish_checkpoint, []
    monkeypatch.setattr(
        feature_module, "publish_checkpoint", lambda *given: at.append(list(seen.steps)) or publish(*given)
    )
    trainer.train()
    assert at == [[1, 2], [1, 2, 3, 4]] and threading.active_count() >= 1


def test_it_goes_on_while_a_checkpoint_is_read_again(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, seen = _trainer(tiny_model, tmp_path)
    record, waited = feature_module.record_contents, []

    def record_late(folder: Path, moved: Any) -> None:
        if folder.name == "checkpoint-2":
            waited.append(folder.is_dir() and seen.third.wait(60))
        record(folder, moved)

    monkeypatch.setattr(feature_module, "record_contents", record_late)
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
    publish = feature_module.publish_checkpoint

    def fails(aside: Path, final: Path, about: dict[str, Any], *more: Any) -> None:
        if final.name == name:
            raise OSError(28, "No space left on device")
        publish(aside, final, about, *more)

    monkeypatch.setattr(feature_module, "publish_checkpoint", fails)
    with pytest.raises(OSError, match="No space left"):
        trainer.train()
    assert seen.steps[-1] == 4, "it is raised by the next save, or by the end of training"
    assert not (tmp_path / name).exists()


def test_a_problem_is_raised_once() -> None:
    feature, done = feature_module.Checkpoints(), list[int]()
    feature.wait()
    feature._published = feature._publisher.submit(lambda: done.append(1 // 0))
    with pytest.raises(ZeroDivisionError):
        feature.wait()
    feature._published = feature._publisher.submit(lambda: done.append(2))
    feature.wait()
    assert done == [2]


class Features(list):
    def call(self, method: Any, *given: Any) -> None:
        self.append((method, given[1]))

    def having(self, method: Any) -> tuple[Any, ...]:
        return ()


def run_of(output: Path, step: int = 4, **args: Any) -> Any:
    given = {
        "async_save": False, "output_dir": str(output), "load_best_model_at_end": True, "save_total_limit": None,
        "zero_stage": 2, "tensor_parallel_size": 3, "expert_parallel_size": 5, "should_save": True,
    }  # fmt: skip
    run = made_up.run(features=Features(), args=given | args)
    run.state = SimpleNamespace(
        global_step=step, best_global_step=None, best_model_checkpoint=None,
        save_to_json=lambda file: Path(file).write_text(json.dumps({"global_step": step})),
    )  # fmt: skip
    run.get_total_train_batch_size = lambda args: 64
    return run


def save(feature: Checkpoints, run: Any, output: Path) -> None:
    """Write files into the checkpoint as the Trainer would."""
    with feature.checkpointing(run):
        assert feature.work == output / PARTIAL
        make(output / PARTIAL, run.state.global_step, record=False)


def test_a_checkpoint_is_written_aside_and_published(tmp_path: Path) -> None:
    feature, run = Checkpoints(), run_of(tmp_path)
    assert feature.work is None
    save(feature, run, tmp_path)
    assert feature.work is None and checkpoints(tmp_path) == [tmp_path / "checkpoint-4"]
    record = read_record(tmp_path / "checkpoint-4") or {}
    about = {"step": 4, "world_size": 1, "zero_stage": 2, "tensor_parallel_size": 3, "expert_parallel_size": 5}
    assert {name: record[name] for name in about} == about and record["global_batch"] == 64
    assert run.features == [(Feature.save_files, tmp_path / PARTIAL / "checkpoint-4")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint-4"], "what was written aside is gone"


def test_an_error_while_the_trainer_writes_publishes_nothing(tmp_path: Path) -> None:
    feature, run = Checkpoints(), run_of(tmp_path)
    with pytest.raises(OSError, match="full"), feature.checkpointing(run):
        make(tmp_path / PARTIAL, 4, record=False)
        raise OSError("the disk is full")
    assert checkpoints(tmp_path) == [] and feature.work is None and run.features == []
    assert is_ours(tmp_path / PARTIAL), "the next start clears it up"


@pytest.mark.parametrize("background", [False, True])
def test_old_ones_go_but_the_newest_and_the_best(tmp_path: Path, background: bool) -> None:
    for step in (1, 2, 3):
        make(tmp_path, step)
    feature, run = Checkpoints(), run_of(tmp_path, save_total_limit=2, async_save=background)
    run.state.best_model_checkpoint = str(tmp_path / "checkpoint-1")
    save(feature, run, tmp_path)
    feature.wait()
    assert [folder.name for folder in checkpoints(tmp_path)] == ["checkpoint-4", "checkpoint-1"]


@pytest.mark.parametrize(
    ("main", "local", "several", "publishes"),
    [(True, 0, False, True), (False, 0, False, False), (False, 0, True, True), (False, 1, True, False)],
)
def test_who_publishes(
    main: bool, local: int, several: bool, publishes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    send = lambda folder, exports: sent.append((folder, exports))  # noqa: E731
    names = {"hftune.checkpoints.unshared_storage:send_common_files": send}
    monkeypatch.setattr(feature_module, "on_demand", names.__getitem__)
    monkeypatch.setattr(feature_module, "writes_in_several_places", lambda output: several)
    monkeypatch.setattr(ranks, "is_main", lambda: main)
    monkeypatch.setattr(ranks, "local_rank", lambda: local)
    feature, run = Checkpoints(), run_of(tmp_path)
    made = tmp_path / PARTIAL / "made"
    if not publishes:  # the first process has made the folder: it must not be cleared up by another
        made.mkdir(parents=True)
    save(feature, run, tmp_path)
    assert made.is_dir() is not publishes
    assert (tmp_path / "checkpoint-4").is_dir() is publishes
    assert sent == ([(tmp_path / PARTIAL / "checkpoint-4", True)] if several else [])


def test_every_process_waits_where_the_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(ranks, "barrier", lambda: waits.append(1))
    save(Checkpoints(), run_of(tmp_path), tmp_path)
    # Before leftovers are cleared up, after the work folder is made, after all have written, after it is published.
    assert len(waits) == 4
    feature = Checkpoints()
    save(feature, run_of(tmp_path, 5, async_save=True), tmp_path)
    feature.wait()
    assert len(waits) == 7, "not after what another thread does"


def test_publishing_shows_that_it_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_CHUNK", 4)
    folder, moves = make(tmp_path, 4, record=False), []
    publish_checkpoint(folder, tmp_path / "checkpoint-5", {}, lambda: moves.append(1))
    record_contents(tmp_path / "checkpoint-5", lambda: moves.append(1))
    files = [file for file in (tmp_path / "checkpoint-5").iterdir() if file.name != RECORD_NAME]
    chunks = sum(-(-file.stat().st_size // 4) for file in files)
    assert len(moves) == len(files) + chunks, "each file that is flushed, and each chunk that is read"


def test_places_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(feature_module, "writes_in_several_places", lambda output: asked.append(output))
    feature = Checkpoints()
    feature._several_places = False
    save(feature, run_of(tmp_path), tmp_path)
    assert asked == []
    save(Checkpoints(), run_of(tmp_path, 5), tmp_path)
    assert asked == [tmp_path]


@pytest.mark.parametrize(
    ("spans", "shared", "several"), [(False, False, False), (True, True, False), (True, False, True)]
)
def test_machines_with_folders_of_their_own(
    spans: bool, shared: bool, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "spans_machines", lambda: spans)
    monkeypatch.setattr(nodes, "is_shared", lambda output: shared)
    monkeypatch.setattr(nodes, "host", lambda: "alpha")
    assert writes_in_several_places(Path("out")) is several
    said = "\n".join(map(str, logging._notices))
    assert ("out is not shared between the machines" in said and "on alpha" in said) is several


def test_the_best_is_where_it_is_published(tmp_path: Path) -> None:
    run, aside = run_of(tmp_path), tmp_path / PARTIAL / "checkpoint-4"
    aside.mkdir(parents=True)
    remember_best(run, tmp_path, "checkpoint-4")
    assert run.state.best_model_checkpoint is None and not (aside / TRAINER_STATE).exists()
    run.state.best_global_step = 3
    remember_best(run, tmp_path, "checkpoint-4")
    assert run.state.best_model_checkpoint is None, "gone"
    run.state.best_global_step = 4
    run.args.should_save = False
    remember_best(run, tmp_path, "checkpoint-4")
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-4") and not (aside / TRAINER_STATE).exists()
    run.args.should_save = True
    (tmp_path / "checkpoint-3").mkdir()
    run.state.best_global_step = 3
    remember_best(run, tmp_path, "checkpoint-4")
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-3") and (aside / TRAINER_STATE).exists()
