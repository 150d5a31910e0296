"""Where groups of two tokenisations begin, and what the teacher is asked there, with a teacher that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hftune.constants import IGNORE_INDEX
from hftune.models.kernels.answer_projection import LogitShape
from hftune.models.kernels.lessons import TeacherStates
from hftune.trainers.distillation.aligned import AlignedLoss
from hftune.trainers.distillation.taught_loss import TaughtLoss
from tests.unit.trainers.features import made_up

NO = IGNORE_INDEX
# Student's ids 2 and 3 write what the teacher's 20 and 30 write; the student has 60 tokens, the teacher 40.
SHARED: Any = SimpleNamespace(
    student_ids=np.array([2, 3]), teacher_ids=np.array([20, 30]), others=True, sizes=(60, 40), share=0.75
)
BATCH = {
    "input_ids": torch.tensor([[1, 2, 3, 50]]),
    "labels": torch.tensor([[NO, 2, 3, 50]]),
    # 3 continues the group that 2 began; 50 begins another.
    "teacher_at": torch.tensor([[-1, 1, -1, 3]]),
    "teacher_input_ids": torch.tensor([[9, 20, 8, 1]]),
    "teacher_attention_mask": torch.tensor([[1, 1, 1, 1]]),
    "teacher_prompt": torch.tensor([1]),
}


class Teachers:
    """Notes what it is asked."""

    def targets(self, run: Any, row: Any, at: torch.Tensor) -> TeacherStates:
        self.row, self.at = row, at.tolist()
        return TeacherStates(torch.zeros(len(at), 2), torch.nn.Identity(), LogitShape())


def loss_of(teachers: Any, shared_weight: float | None = None, split_weight: float | None = None) -> AlignedLoss:
    args: Any = SimpleNamespace(beta=0.5, temperature=2.0, hard_label_share=0.25, max_teacher_entropy=None)
    args.shared_token_weight, args.split_token_weight = shared_weight, split_weight
    return AlignedLoss(teachers, args, SHARED)


@pytest.mark.parametrize(
    ("given", "weights"), [((None, None), (0.75, 0.25)), ((0.0, 2.0), (0.0, 2.0)), ((None, 0.0), (0.75, 0.0))]
)
def test_what_a_difference_weighs(given: Any, weights: Any) -> None:
    pairing = loss_of(Teachers(), *given).pairing
    assert pairing.weights == weights and pairing.sizes == (60, 40) and pairing.others is True
    assert (pairing.student_ids.tolist(), pairing.teacher_ids.tolist()) == ([2, 3], [20, 30])


def test_the_teacher_is_asked_before_the_first_token_of_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    teachers, given = Teachers(), {}
    loss, run = loss_of(teachers), made_up.run(model=torch.nn.Linear(1, 1))

    def plain(self: Any, run: Any, model: Any, inputs: Any, counted: Any) -> Any:
        given.update(inputs)
        return ("the loss", counted)

    monkeypatch.setattr(TaughtLoss, "make_loss", plain)
    assert loss.make_loss(run, None, BATCH, 5) == ("the loss", 5)
    assert sorted(given) == ["input_ids", "labels"], "what the teacher reads does not go to the student"
    # Labels 2, 3 and 50 are predicted at places 0, 1 and 2.
    (lesson,) = loss.more(run, given, torch.tensor([0, 1, 2])).values()
    assert teachers.at == [0, 2], "where 20 and 1 are predicted"
    assert teachers.row["input_ids"] is BATCH["teacher_input_ids"]
    assert teachers.row["attention_mask"] is BATCH["teacher_attention_mask"]
    targets = lesson.targets
    assert targets.group.tolist() == [0, -1, 1]
    assert targets.alike.tolist() == [True, False], "20 is how the teacher writes 2; the student's 50 is its own"
    assert targets.pairing is loss.pairing and len(targets.states.hidden) == 2


def test_vocabularies_are_put_where_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaughtLoss, "on_built", lambda self, run: None)
    loss = loss_of(Teachers())
    loss.on_built(made_up.run(args={"device": torch.device("meta")}))
    assert (
        loss._same.device.type == loss.pairing.student_ids.device.type == loss.pairing.teacher_ids.device.type == "meta"
    )
