"""The loss of distillation: computed where labels are and nowhere else, without whole logits of anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hftune.arguments.training import StageArguments
from hftune.logging import notice
from hftune.models.kernels.divergences import Divergence, Lesson
from hftune.trainers.distillation.on_policy import OnPolicyAnswers
from hftune.trainers.distillation.teachers import ServerTeacher, StoredTeacher, Teachers
from hftune.trainers.features.run import Inputs, Run
from hftune.trainers.features.sums import MetricSums
from hftune.trainers.features.token_loss import TokenLoss


class TaughtLoss(TokenLoss):
    """The divergence between teacher and student at each label, in the place of the label's own loss.

    Args:
        drawn: Draws answers of the student; None where none are drawn. Their tokens are no labels: of a step that
            trains them `--hard_label_share` is left out.
    """

    def __init__(
        self,
        teachers: Teachers | StoredTeacher | ServerTeacher,
        args: StageArguments,
        drawn: OnPolicyAnswers | None = None,
    ) -> None:
        super().__init__(measures_tokens=True, device=args.device)
        self.teachers, self.drawn = teachers, drawn
        self.sure = MetricSums(args.device, ("sure",))  # the share of tokens of which a teacher was sure
        self.divergence = Divergence(args.beta, args.temperature, args.hard_label_share, args.max_teacher_entropy)

    def more(self, run: Run, inputs: Inputs, at: torch.Tensor) -> dict[str, Any]:
        """Overrides `TokenLoss.more`: what the teachers say of these tokens."""
        return {"answer_teacher": Lesson(self.teachers.targets(run, inputs, at), self.minimised(run))}

    def minimised(self, run: Run) -> Divergence:
        """The divergence of this step or evaluation."""
        own = self.drawn is not None and self.drawn.drawing and run.model.training
        return replace(self.divergence, hard_label_share=0.0) if own else self.divergence

    def make_loss(self, run: Run, model: Any, inputs: Inputs, counted: Any) -> tuple[torch.Tensor, Any] | None:
        """Overrides `TokenLoss.make_loss`: tokens that `--max_teacher_entropy` leaves in are counted."""
        made, limit = super().make_loss(run, model, inputs, counted), self.divergence.max_teacher_entropy
        if made is not None and limit is not None and run.model.training:
            self.sure.add("sure", made[1].teacher_entropy <= limit)
        return made

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """Overrides `TokenLoss.before_log`: the share of tokens that were trained as well; every rank."""
        super().before_log(run, logs)
        if self.divergence.max_teacher_entropy is None or not run.model.training:
            return
        sure, tokens = self.sure.take(run.accelerator)["sure"]
        run._metrics["train"]["teacher_sure"] = [sure / max(tokens, 1)]
        if tokens and not sure:
            notice(
                f"--max_teacher_entropy {self.divergence.max_teacher_entropy:g} left no token of {tokens} between two "
                "logs: the loss is 0 and nothing is learned; raise it (teacher_sure in the log is the share it leaves)"
            )

    def state(self, run: Run) -> dict[str, Any]:
        """Overrides `TokenLoss.state`: tokens since the last log as well."""
        return super().state(run) | {"sure": self.sure.totals(run.accelerator)}

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Overrides `TokenLoss.load_state` likewise."""
        super().load_state(run, saved)
        self.sure.restore(saved.get("sure", {}))
