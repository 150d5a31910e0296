"""Nothing but a finished result is uploaded during a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers.trainer_utils import HubStrategy

from hftune.preflight.rules.hub import check_hub


def said(push: bool, strategy: str | HubStrategy) -> list[str]:
    facts: Any = SimpleNamespace(training_args=SimpleNamespace(push_to_hub=push, hub_strategy=strategy))
    return [str(problem) for problem in check_hub(facts)]


@pytest.mark.parametrize("strategy", ["every_save", HubStrategy.CHECKPOINT, "all_checkpoints"])
def test_checkpoints_are_not_uploaded(strategy: str | HubStrategy) -> None:
    (problem,) = said(True, strategy)
    assert f"--hub_strategy {HubStrategy(strategy).value}" in problem and "hftune export hub" in problem
    assert said(False, strategy) == []


def test_the_result_is() -> None:
    assert said(True, "end") == said(True, HubStrategy.END) == []
