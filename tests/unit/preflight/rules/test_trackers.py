"""Trackers are known and installed before a model loads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from hftune.preflight.rules import trackers
from hftune.preflight.rules.trackers import PACKAGES, check_trackers


def said(*names: str) -> list[str]:
    facts: Any = SimpleNamespace(training_args=SimpleNamespace(report_to=list(names)))
    return [str(problem) for problem in check_trackers(facts)]


def test_known_and_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name == "wandb" or None)
    assert said("none") == said() == said("wandb") == []
    (problem,) = said("wandb", "comet_ml")
    assert "comet_ml is not installed" in problem and "pip install comet-ml; or --report_to none" in problem
    (problem,) = said("tensorbord")
    assert "there is no tracker 'tensorbord'" in problem and "did you mean --report_to tensorboard?" in problem


def test_either_package_for_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name == "tensorboardX" or None)
    assert said("tensorboard") == []
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    assert "pip install tensorboard;" in said("tensorboard")[0]


def test_transformers_knows_no_others() -> None:
    assert {*INTEGRATION_TO_CALLBACK} - {"kubeflow"} == PACKAGES.keys()
