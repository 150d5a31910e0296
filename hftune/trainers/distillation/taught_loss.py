"""The loss of distillation: computed where labels are and nowhere else, without whole logits of anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hftune.arguments.training import StageArguments
from hftune.models.kernels.divergences import Divergence, Lesson
from hftune.trainers.distillation.on_policy import OnPolicyAnswers
from hftune.trainers.distillation.teachers import LoadedTeacher, ServerTeacher, StoredTeacher
from hftune.trainers.features.run import Inputs, Run
from hftune.trainers.features.token_loss import TokenLoss


class TaughtLoss(TokenLoss):
    """The divergence between teacher and student at each label, in the place of the label's own loss.

    Args:
        drawn: Draws answers of the student; None where none are drawn. Their tokens are no labels: of a step that
            trains them `--hard_label_share` is left out.
    """

    def __init__(
        self,
        teachers: LoadedTeacher | StoredTeacher | ServerTeacher,
        args: StageArguments,
        drawn: OnPolicyAnswers | None = None,
    ) -> None:
        super().__init__(measures_tokens=True, device=args.device)
        self.teachers, self.drawn = teachers, drawn
        self.divergence = Divergence(args.beta, args.temperature, args.hard_label_share)

    def more(self, run: Run, inputs: Inputs, at: torch.Tensor) -> dict[str, Any]:
        """Overrides `TokenLoss.more`: what the teachers say of these tokens."""
        return {"answer_teacher": Lesson(self.teachers.targets(run, inputs, at), self.minimised(run))}

    def minimised(self, run: Run) -> Divergence:
        """The divergence of this step or evaluation."""
        own = self.drawn is not None and self.drawn.drawing and run.model.training
        return replace(self.divergence, hard_label_share=0.0) if own else self.divergence
