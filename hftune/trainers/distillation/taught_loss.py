"""The loss of distillation: computed where labels are and nowhere else, without whole logits of anybody."""

from __future__ import annotations

from typing import Any

import torch

from hftune.arguments.training import StageArguments
from hftune.models.kernels.lessons import Divergence, Lesson
from hftune.trainers.distillation.teachers import Teachers
from hftune.trainers.features.answer_loss import AnswerLoss
from hftune.trainers.features.run import Inputs, Run


class TaughtLoss(AnswerLoss):
    """The divergence between teacher and student at each label, in the place of the label's own loss."""

    def __init__(self, teachers: Teachers, args: StageArguments) -> None:
        super().__init__(measures_tokens=True)
        self.teachers = teachers
        self.divergence = Divergence(args.beta, args.temperature, args.hard_label_share, args.max_teacher_entropy)

    def more(self, run: Run, inputs: Inputs, at: torch.Tensor) -> dict[str, Any]:
        """Overrides `AnswerLoss.more`: what the teachers say of these tokens."""
        return {"answer_teacher": Lesson(self.teachers.targets(run, inputs, at), self.divergence)}
