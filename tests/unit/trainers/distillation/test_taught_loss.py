"""What is minimised of drawn answers, of the records' own, and in an evaluation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.trainers.distillation.on_policy import OnPolicyAnswers
from hftune.trainers.distillation.taught_loss import TaughtLoss
from tests.unit.trainers.features import made_up

ARGS: Any = SimpleNamespace(
    beta=0.5, temperature=2.0, hard_label_share=0.25, max_teacher_entropy=3.0, device=torch.device("cpu")
)


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
    assert (found.beta, found.temperature, found.max_teacher_entropy) == (0.5, 2.0, 3.0)
    assert TaughtLoss(SimpleNamespace(), ARGS).minimised(run).hard_label_share == 0.25  # type: ignore[arg-type]


def test_the_share_of_sure_tokens_is_resumed() -> None:
    before, after = (TaughtLoss(SimpleNamespace(), ARGS) for _ in range(2))  # type: ignore[arg-type]
    before.sure.add("sure", torch.tensor([True, False, False, True]))
    run = made_up.run(model=torch.nn.Linear(1, 1))
    run._metrics, run._total_train_tokens, run._tp_size = {"train": {}}, 0, 1
    after.load_state(run, before.state(run))
    after.before_log(run, {"loss": 1.0})
    assert run._metrics["train"]["teacher_sure"] == [0.5]
