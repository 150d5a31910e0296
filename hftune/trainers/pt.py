"""Pre-training: the next token of plain text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Trainer

from hftune.arguments.training import PTArguments, StageArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.batches.collators import causal_collator
from hftune.data.splits import Splits
from hftune.trainers.features.answer_loss import AnswerLoss
from hftune.trainers.features.blocks import Blocks
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.held_out_loss import HeldOutLoss
from hftune.trainers.features.streams import Streams
from hftune.trainers.stage_trainer import StageTrainer


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
            data_collator=causal_collator(tokenizer.pad_token_id, flat=args.flat_batches),
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            compute_metrics=token_accuracy,
            preprocess_logits_for_metrics=most_likely,
            **kwargs,
        )
        self.record_order.mixture = data.mixture

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """Data of one's own before all others, the loss behind all others."""
        answers = AnswerLoss(measures_tokens=False)
        return [Streams(), Blocks(), *super().make_features(model, args), HeldOutLoss(), answers]


def most_likely(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Token ids (batch, length) from logits (batch, length, vocabulary), so that no logits pile up in evaluation.

    Mostly there are none: what comes are token ids already (`AnswerLossMixin`).
    """
    tensor = logits[0] if isinstance(logits, tuple) else logits
    return tensor.argmax(dim=-1) if tensor.dim() == 3 else tensor


def token_accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Share of trained tokens that are predicted, of ids and labels (batch, length); NaN where none is trained."""
    # Position t predicts the label at t + 1.
    predicted, labels = np.asarray(prediction.predictions)[:, :-1], np.asarray(prediction.label_ids)[:, 1:]
    trained = labels != IGNORE_INDEX
    right = (predicted[trained] == labels[trained]).mean() if trained.any() else math.nan
    return {"token_accuracy": float(right)}
