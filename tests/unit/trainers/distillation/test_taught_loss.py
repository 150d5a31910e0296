"""What is minimised of drawn answers, of the records' own, and in an evaluation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.trainers.distillation.on_policy import OnPolicyAnswers
from hftune.trainers.distillation.taught_loss import TaughtLoss
from tests.unit.trainers.features import made_up

ARGS: Any = SimpleNamespace(beta=0.5, temperature=2.0, hard_label_share=0.25, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("drawing", "training", "share"), [(True, True, 0.0), (True, False, 0.25), (False, True, 0.25)]
)
def test_tokens_that_the_student_drew_are_no_labels(drawing: bool, training: bool, share: float) -> None:
    drawn = OnPolicyAnswers(1.0)
    drawn.drawing = drawing
    loss = TaughtLoss(SimpleNamespace(), ARGS, drawn)  # type: ignore[arg-type]
    run = made_up.run(model=torch.nn.Linear(1, 1).train(training))
    found = loss.minimised(run)
    assert found.hard_label_share == share and loss.measures_tokens
    assert (found.beta, found.temperature) == (0.5, 2.0)
    assert TaughtLoss(SimpleNamespace(), ARGS).minimised(run).hard_label_share == 0.25  # type: ignore[arg-type]
