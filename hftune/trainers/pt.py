"""Pre-training: the next token of plain text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Trainer

from hftune.arguments.training import PTArguments
from hftune.data.splits import Splits
from hftune.trainers import metrics
from hftune.trainers.features.answer_loss import AnswerLoss
from hftune.trainers.features.blocks import Blocks
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.held_out_loss import HeldOutLoss
from hftune.trainers.features.streams import Streams
from hftune.trainers.stage_trainer import StageTrainer, causal_collator


class PTTrainer(StageTrainer, Trainer):
    """`transformers.Trainer` on blocks of text; evaluation reports token accuracy and perplexity.

    The training data are a map-style dataset, a `BlockDataset` over tokenised folders, or a `StreamingDataset`.
    """

    reports_perplexity = True

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: PTArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            data_collator=causal_collator(args, tokenizer),
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            compute_metrics=token_accuracy,
            preprocess_logits_for_metrics=most_likely,
            **kwargs,
        )
        self.record_order.mixture = data.mixture

    def make_features(self) -> list[Feature]:
        """Data of one's own before all others, the loss behind all others."""
        answers = AnswerLoss(measures_tokens=False)
        return [Streams(), Blocks(), *super().make_features(), HeldOutLoss(), answers]


def most_likely(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Token ids (batch, length) from logits (batch, length, vocabulary), so that no logits pile up in evaluation.

    Mostly there are none: what comes are token ids already (`AnswerLossMixin`).
    """
    tensor = logits[0] if isinstance(logits, tuple) else logits
    return tensor.argmax(dim=-1) if tensor.dim() == 3 else tensor


def token_accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Token accuracy of predicted ids (batch, length) against labels (batch, length): position t predicts t + 1."""
    predicted, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    return {"token_accuracy": metrics.token_accuracy(predicted[:, :-1], labels[:, 1:])}
