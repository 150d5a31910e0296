"""What trackers are told of a run, when they end, and where they say it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerCallback

from hftune.trainers import trackers
from hftune.trainers.trackers import tracked

MANIFEST: dict[str, Any] = {
    "stage": "sft",
    "hftune": "1.0",
    "base": {"name": "/models/base-model"},
    "arguments": {"model": {"dtype": Path("x")}, "data": {"train_file_dir": "d"}, "adapter": {"lora_r": 4}},
}


class Recorder(TrainerCallback):
    """A tracker that notes what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append("log")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(f"end {kwargs}")


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(trackers, "INTEGRATION_TO_CALLBACK", {"mine": Recorder})
    args = SimpleNamespace(output_dir=str(tmp_path / "my-run"), run_name=None, given=frozenset(), project="p")
    return SimpleNamespace(args=args, callback_handler=SimpleNamespace(callbacks=[TrainerCallback(), Recorder()]))


def test_a_tracker_ends_after_the_last_figures(trainer: Any) -> None:
    recorder = trainer.callback_handler.callbacks[1]
    with tracked(trainer, MANIFEST):
        recorder.on_train_end(trainer.args, None, None, model="m")
        recorder.on_log(trainer.args, None, None)
        assert recorder.seen == ["log"]
    assert recorder.seen == ["log", "end {'model': 'm'}"]


def test_those_that_end_with_the_process_end_before(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = trainer.callback_handler.callbacks[1]
    monkeypatch.setattr(trackers, "INTEGRATION_TO_CALLBACK", {"wandb": Recorder})
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(finish=lambda: recorder.seen.append("finish")))
    with tracked(trainer, MANIFEST):
        recorder.on_train_end(trainer.args, None, None)
    assert recorder.seen == ["end {}", "finish"]


def test_it_ends_where_a_run_fails_as_well(trainer: Any) -> None:
    recorder = trainer.callback_handler.callbacks[1]
    with pytest.raises(KeyError), tracked(trainer, MANIFEST):
        recorder.on_train_end(trainer.args, None, None)
        raise KeyError
    assert recorder.seen == ["end {}"]


def test_what_they_are_told(trainer: Any) -> None:
    with tracked(trainer, MANIFEST):
        pass
    assert trainer.args.run_name == "my-run"
    told = trainer.args.told_trackers
    assert told == {
        **{"dtype": "x", "train_file_dir": "d", "lora_r": 4},
        **{"hftune": "1.0", "hftune_stage": "sft", "hftune_base": "/models/base-model"},
    }


def test_a_project_is_for_all_of_them(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for name in ("SWANLAB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with tracked(trainer, MANIFEST):
        assert "SWANLAB_PROJECT" not in os.environ, "the trackers' own default"
    trainer.args.given, trainer.args.run_name = frozenset({"project"}), "given"
    with tracked(trainer, MANIFEST):
        found = [os.environ[name] for name in ("WANDB_PROJECT", "SWANLAB_PROJECT", "MLFLOW_EXPERIMENT_NAME")]
    assert found == ["mine", "p", "p"] and trainer.args.run_name == "given"


def test_a_run_of_swanlab_is_begun_for_its_callback(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Any]] = []
    there = [False]
    module = SimpleNamespace(has_run=lambda: there[0], init=lambda **given: begun.append(given), finish=lambda: None)
    monkeypatch.setitem(sys.modules, "swanlab", module)
    monkeypatch.setattr(trackers, "INTEGRATION_TO_CALLBACK", {"swanlab": Recorder})
    monkeypatch.setenv("SWANLAB_PROJECT", "p")
    for is_there, times in ((False, 1), (True, 1)):
        there[0] = is_there
        with tracked(trainer, MANIFEST):
            assert len(begun) == times, "one that is there is taken"
    assert begun == [{"project": "p", "name": "my-run"}]
    monkeypatch.setattr(trackers.ranks, "is_main", lambda: False)
    there[0] = False
    with tracked(trainer, MANIFEST):
        assert len(begun) == 1, "one process reports"
