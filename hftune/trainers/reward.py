"""Reward model: one score a conversation, higher for the preferred answer (Bradley-Terry)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import trl
from peft import PeftModel
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import RMArguments
from hftune.data.splits import Splits
from hftune.trainers.base import HftuneTrainerMixin
from hftune.trainers.metrics import load_metric


class RewardTrainer(HftuneTrainerMixin, trl.RewardTrainer):
    """TRL's trainer, with accuracy and margin taken over the held-out pairs as a whole.

    TRL averages the averages of batches, which is another number when the last batch is smaller or ranks differ.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: RMArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            compute_metrics=pairwise_metrics,
            **kwargs,
        )
        self.mixture = data.mixture

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Loss, scores (pairs, 2) as chosen and rejected, and a label a pair, so that ranks can be gathered by pair."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        # TRL stacks a batch as all chosen, then all rejected: (2 * pairs, 1).
        chosen, rejected = outputs.logits.squeeze(-1).float().chunk(2)
        scores = torch.stack([chosen, rejected], dim=1)
        labels = torch.zeros_like(chosen)
        return (loss, None, None) if prediction_loss_only else (loss, scores, labels)


def pairwise_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy and mean margin from scores (pairs, 2)."""
    scores = np.asarray(prediction.predictions, dtype=np.float64)
    chosen, rejected = scores[:, 0], scores[:, 1]
    accuracy = load_metric("pairwise_accuracy").compute(predictions=chosen, references=rejected)
    return accuracy | load_metric("reward_margin").compute(predictions=chosen, references=rejected)
