"""Callbacks by name, early stopping, trackers and uploads, before a model loads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from hftune.preflight.rules.callbacks import callback_class, check_callbacks, check_trackers

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
    **{"callbacks": None, "early_stopping_patience": None, "early_stopping_threshold": 0.0},
    **{"do_train": True, "eval_strategy": "steps", "load_best_model_at_end": True},
}


def said(**args: Any) -> list[str]:
    training = SimpleNamespace(**{**_ARGS, **args})
    facts: Any = SimpleNamespace(training_args=training, arguments=(training,))
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


def test_what_early_stopping_needs() -> None:
    assert said(early_stopping_patience=2) == []
    (found,) = said(early_stopping_patience=2, load_best_model_at_end=False)
    assert "needs --load_best_model_at_end" in found


def tracker_problems(*names: str) -> list[str]:
    facts: Any = SimpleNamespace(training_args=SimpleNamespace(report_to=list(names)))
    return [str(problem) for problem in check_trackers(facts)]


def test_known_and_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.integrations, "get_available_reporting_integrations", lambda: ["wandb"])
    assert tracker_problems("none") == tracker_problems() == tracker_problems("wandb") == []
    (problem,) = tracker_problems("wandb", "wandbb")
    assert "no tracker 'wandbb' is installed" in problem and "did you mean --report_to wandb?" in problem
