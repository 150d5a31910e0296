"""What trackers are told of a run, when they end, and where they say it is."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from hftune.errors import ArgumentError
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
    for name in ("WANDB_TAGS", "MLFLOW_TAGS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(trackers, "INTEGRATION_TO_CALLBACK", {"mine": Recorder})
    monkeypatch.setattr(trackers, "_PLACES", {"mine": lambda callback, args: f"at {len(callback.seen)}"})
    args = SimpleNamespace(output_dir=str(tmp_path / "my-run"), run_name=None, given=frozenset(), project="p")
    return SimpleNamespace(args=args, callback_handler=SimpleNamespace(callbacks=[TrainerCallback(), Recorder()]))


def test_a_tracker_ends_after_the_last_figures(trainer: Any) -> None:
    recorder = trainer.callback_handler.callbacks[1]
    with tracked(trainer, MANIFEST) as places:
        recorder.on_train_end(trainer.args, None, None, model="m")
        recorder.on_log(trainer.args, None, None)
        assert recorder.seen == ["log"] and places == {}
    assert recorder.seen == ["log", "end {'model': 'm'}"] and places == {"mine": "at 1"}


def test_those_that_end_with_the_process_end_before(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = trainer.callback_handler.callbacks[1]
    monkeypatch.setattr(trackers, "INTEGRATION_TO_CALLBACK", {"wandb": Recorder})
    monkeypatch.setattr(trackers, "_PLACES", {"wandb": lambda callback, args: "there"})
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


def test_what_they_are_told(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "INTEGRATION_TO_CALLBACK", {"mlflow": Recorder})
    monkeypatch.setenv("WANDB_TAGS", "mine,sft")
    monkeypatch.setenv("MLFLOW_TAGS", '{"hftune.stage": "other", "team": "a"}')
    with tracked(trainer, MANIFEST):
        pass
    assert trainer.args.run_name == "my-run"
    told = trainer.args.told_trackers
    assert told == {
        **{"dtype": "x", "train_file_dir": "d", "lora_r": 4},
        **{"hftune": "1.0", "hftune_stage": "sft", "hftune_base": "/models/base-model"},
    }
    assert os.environ["WANDB_TAGS"] == "mine,sft,hftune,base-model"
    tags = json.loads(os.environ["MLFLOW_TAGS"])
    assert tags == {"hftune": "1.0", "hftune.stage": "other", "hftune.base": "/models/base-model", "team": "a"}


def test_tags_that_are_no_json(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TAGS", "team=a")
    with tracked(trainer, MANIFEST):
        pass
    monkeypatch.setattr(trackers, "INTEGRATION_TO_CALLBACK", {"mlflow": Recorder})
    with pytest.raises(ArgumentError, match="MLFLOW_TAGS"), tracked(trainer, MANIFEST):
        pass


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
    monkeypatch.setattr(trackers, "_PLACES", {"swanlab": lambda callback, args: "there"})
    monkeypatch.setenv("SWANLAB_PROJECT", "p")
    for is_there, times in ((False, 1), (True, 1)):
        there[0] = is_there
        with tracked(trainer, MANIFEST):
            assert len(begun) == times, "one that is there is taken"
    assert begun == [{"project": "p", "name": "my-run", "tags": ["hftune", "sft", "base-model"]}]
    monkeypatch.setattr(trackers.ranks, "is_main", lambda: False)
    there[0] = False
    with tracked(trainer, MANIFEST) as places:
        assert len(begun) == 1, "one process reports"
    assert places == {}


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = trackers._PLACES
    assert places.keys() <= integration_utils.INTEGRATION_TO_CALLBACK.keys()
    board = SimpleNamespace(logging_dir=f"{tmp_path}/runs/Nov24")
    assert places["tensorboard"](board, None) == f"tensorboard --logdir {tmp_path}/runs"
    run = SimpleNamespace(url=None, dir=f"{tmp_path}/wandb/offline-run-1/files")
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    assert places["wandb"](None, None) == f"{tmp_path}/wandb/offline-run-1; wandb sync {tmp_path}/wandb/offline-run-1"
    run.url = "https://w/run"
    assert places["wandb"](None, None) == "https://w/run"
    info = SimpleNamespace(experiment_id="0", run_id="r")
    uri = ["http://127.0.0.1:5000"]
    mlflow = SimpleNamespace(active_run=lambda: SimpleNamespace(info=info), get_tracking_uri=lambda: uri[0])
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert places["mlflow"](None, None) == "http://127.0.0.1:5000/#/experiments/0/runs/r"
    uri[0] = "file:///m"
    assert places["mlflow"](None, None) == "run r in file:///m; mlflow ui --backend-store-uri file:///m"
    assert places["trackio"](None, SimpleNamespace(project="p")) == "trackio show --project p"
    alive = SimpleNamespace(mode="offline", dir=Path("/s/run-1"), url="https://s/run")
    monkeypatch.setitem(sys.modules, "swanlab", SimpleNamespace(has_run=lambda: True, get_run=lambda: alive))
    assert places["swanlab"](None, None) == "/s/run-1; swanlab sync /s/run-1"
    alive.mode = "online"
    assert places["swanlab"](None, None) == "https://s/run"
    monkeypatch.setitem(sys.modules, "swanlab", SimpleNamespace(has_run=lambda: False))
    assert places["swanlab"](None, None) is None
