"""What teachers say of the tokens of a micro batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel
from trl.models import prepare_deepspeed

from hftune.models.kernels.answer_head import add_answer_head
from hftune.models.kernels.divergences import MixedTeachers, TeacherStates
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run
from hftune.trainers.features.token_loss import OF_LABELS


class Teachers(Feature):
    """Frozen models next to the student: on its device, partitioned by ZeRO-3 where the student is.

    Args:
        models: In evaluation mode.
        shares: Of each in the mixture of what they say.
        vocabulary: Rows of their heads that tokens have.
    """

    def __init__(self, models: list[PreTrainedModel], shares: list[float], vocabulary: int) -> None:
        self.models: list[Any] = list(models)
        self.shares, self.vocabulary = shares, vocabulary

    def on_built(self, run: Run) -> None:
        """Place them where and as this run computes."""
        for model in self.models:
            add_answer_head(model)
        prepared = [self._prepared(run, model) for model in self.models]
        self.models = prepared

    @torch.no_grad()
    def targets(self, run: Run, inputs: Inputs, at: torch.Tensor) -> TeacherStates | MixedTeachers:
        """What is said of the tokens whose predictions are at places `at` (tokens,) of the flattened batch.

        Args:
            inputs: The batch of the student.
        """
        inputs = {name: value for name, value in inputs.items() if name not in OF_LABELS}
        with run.accelerator.autocast():
            states = [model(**inputs, answer_at=at, answer_states=True) for model in self.models]
        said = [replace(each, vocabulary=self.vocabulary) for each in states]
        return said[0] if len(said) == 1 else MixedTeachers(said, self.shares)

    @staticmethod
    def _prepared(run: Run, model: PreTrainedModel) -> Any:
        if run.is_deepspeed_enabled:
            return prepare_deepspeed(model, run.accelerator)
        return run.accelerator.prepare_model(model, evaluation_mode=True)
