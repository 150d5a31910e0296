"""Supervised fine-tuning: the answers of conversations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trl
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import SFTArguments
from hftune.data.splits import Splits
from hftune.trainers.base import HftuneTrainerMixin, causal_collator
from hftune.trainers.evaluation import TokenLossMixin, weighted_mean


class SFTTrainer(HftuneTrainerMixin, TokenLossMixin, trl.SFTTrainer):
    """TRL's trainer on records that hftune has tokenised and masked; token accuracy and entropy are TRL's."""

    reports_perplexity = True

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: SFTArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        **kwargs: Any,
    ) -> None:
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
        collator = causal_collator(args, tokenizer)
        with _done_already(args):
            super().__init__(
                model=model,
                args=args,
                processing_class=tokenizer,
                data_collator=collator,
                train_dataset=data.train,
                eval_dataset=data.evaluation,
                **kwargs,
            )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's; token accuracy and entropy of an evaluation are means over its tokens, not over its batches."""
        if not self.model.training:
            for name in ("entropy", "mean_token_accuracy"):
                values = self._metrics["eval"][name]
                if values:
                    self._metrics["eval"][name] = [weighted_mean(values, self.tokens_per_batch)]
        super().log(logs, start_time)


@contextmanager
def _done_already(args: SFTArguments) -> Iterator[None]:
    """Hide from TRL that rows are packed: it would pack them itself, with FlashAttention and its own collator only."""
    hidden = {"packing": False, "padding_free": False, "eval_packing": None}
    asked = {name: getattr(args, name) for name in hidden}
    for name, value in hidden.items():
        setattr(args, name, value)
    try:
        yield
    finally:
        for name, value in asked.items():
            setattr(args, name, value)
