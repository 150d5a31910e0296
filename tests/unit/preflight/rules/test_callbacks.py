"""Callbacks by name, early stopping, trackers and uploads, before a model loads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.integrations import INTEGRATION_TO_CALLBACK
from transformers.trainer_utils import HubStrategy

from hftune.preflight.rules import callbacks as rules
from hftune.preflight.rules.callbacks import PACKAGES, callback_class, check_callbacks, check_hub, check_trackers

MINE = """
from transformers import TrainerCallback

class Mine(TrainerCallback):
    def __init__(self, after=1):
        raise AssertionError("made before the run")

class Other:
    pass

def function():
    pass
"""
_ARGS = {
    **{"callbacks": None, "early_stopping_patience": None, "early_stopping_threshold": 0.0, "eval_tasks": None},
    **{"do_train": True, "eval_strategy": "steps", "load_best_model_at_end": True},
}


def said(**args: Any) -> list[str]:
    facts: Any = SimpleNamespace(training_args=SimpleNamespace(**{**_ARGS, **args}))
    return [str(problem) for problem in check_callbacks(facts)]


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path}/mine.py"


def test_classes_that_are_there(mine: str) -> None:
    names = [f"{mine}:Mine", "transformers:EarlyStoppingCallback", f'{mine}:Mine{{"after": 3}}']
    assert said(callbacks=names) == []
    assert [callback_class(name)[1] for name in names] == [{}, {}, {"after": 3}]
    assert callback_class(names[0])[0].__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("{mine}:Other", "Other is no subclass of transformers' TrainerCallback"),
        ("{mine}:function", "function is no subclass"),
        ("{mine}:Missing", "Missing cannot be loaded"),
        ("early_stop", "'early_stop' names no class"),
        ('{mine}:Mine{{"before": 3}}', "cannot be made of {'before': 3}: "),
        ("{mine}:Mine{{after: 3}}", "--callbacks: "),
    ],
)
def test_what_is_no_callback(mine: str, name: str, problem: str) -> None:
    (found,) = said(callbacks=[name.format(mine=mine)])
    assert problem in found and "--callbacks FILE.py:CLASS" in found


def test_all_problems_at_once(mine: str) -> None:
    assert len(said(callbacks=[f"{mine}:A", f"{mine}:B"], early_stopping_patience=2, do_train=False)) == 3


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({}, None),
        ({"eval_strategy": "no"}, "needs evaluations (--eval_strategy steps, and --validation_file_dir)"),
        ({"load_best_model_at_end": False}, "needs --load_best_model_at_end"),
        ({"do_train": False}, "needs training"),
    ],
)
def test_what_early_stopping_needs(changes: dict[str, Any], lacks: str | None) -> None:
    found = said(early_stopping_patience=2, **changes)
    assert found == [] if lacks is None else lacks in found[0] and len(found) == 1


def tracker_problems(*names: str) -> list[str]:
    facts: Any = SimpleNamespace(training_args=SimpleNamespace(report_to=list(names)))
    return [str(problem) for problem in check_trackers(facts)]


def test_known_and_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules.importlib.util, "find_spec", lambda name: name == "wandb" or None)
    assert tracker_problems("none") == tracker_problems() == tracker_problems("wandb") == []
    (problem,) = tracker_problems("wandb", "comet_ml")
    assert "comet_ml is not installed" in problem and "pip install comet-ml; or --report_to none" in problem
    (problem,) = tracker_problems("tensorbord")
    assert "there is no tracker 'tensorbord'" in problem and "did you mean --report_to tensorboard?" in problem


def test_either_package_for_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules.importlib.util, "find_spec", lambda name: name == "tensorboardX" or None)
    assert tracker_problems("tensorboard") == []
    monkeypatch.setattr(rules.importlib.util, "find_spec", lambda name: None)
    assert "pip install tensorboard;" in tracker_problems("tensorboard")[0]


def test_transformers_knows_no_others() -> None:
    assert {*INTEGRATION_TO_CALLBACK} - {"kubeflow"} == PACKAGES.keys()


def hub_problems(push: bool, strategy: str | HubStrategy) -> list[str]:
    facts: Any = SimpleNamespace(training_args=SimpleNamespace(push_to_hub=push, hub_strategy=strategy))
    return [str(problem) for problem in check_hub(facts)]


@pytest.mark.parametrize("strategy", ["every_save", HubStrategy.CHECKPOINT, "all_checkpoints"])
def test_checkpoints_are_not_uploaded(strategy: str | HubStrategy) -> None:
    (problem,) = hub_problems(True, strategy)
    assert f"--hub_strategy {HubStrategy(strategy).value}" in problem and "hftune export hub" in problem
    assert hub_problems(False, strategy) == []


def test_the_result_is() -> None:
    assert hub_problems(True, "end") == hub_problems(True, HubStrategy.END) == []
