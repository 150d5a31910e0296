"""Pre-training: the next token of plain text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch.utils.data import IterableDataset
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Trainer

from hftune.arguments.training import PTArguments, StageArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.collators import causal_collator
from hftune.data.splits import Splits
from hftune.trainers.features.corpora import Blocks, Streams
from hftune.trainers.features.token_loss import TokenLoss
from hftune.trainers.token_trainer import TokenTrainer


class PTTrainer(TokenTrainer, Trainer):
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
        self.stream, self.blocks = (Streams(), None) if isinstance(data.train, IterableDataset) else (None, Blocks())
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
        self.mixture = data.mixture

    def make_token_loss(self, args: StageArguments) -> TokenLoss:
        """Without entropy, which nobody reads."""
        return TokenLoss(measures_tokens=False, device=args.device)


def most_likely(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Token ids (batch, length) from logits (batch, length, vocabulary), so that no logits pile up in evaluation.

    Mostly there are none: what comes are token ids already (`TokenLoss`).
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
