"""Supervised fine-tuning: the answers of conversations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trl
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.training import SFTArguments
from hftune.data.collators import causal_collator
from hftune.data.splits import Splits
from hftune.trainers.token_trainer import TokenTrainer


class SFTTrainer(TokenTrainer, trl.SFTTrainer):
    """TRL's trainer on records that hftune has tokenised and masked; token accuracy and entropy are TRL's."""

    reports_perplexity = True
    extra_columns = ("loss_weights",)

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: SFTArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        **kwargs: Any,
    ) -> None:
        # TRL would tokenise the records a second time.
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            data_collator=causal_collator(tokenizer.pad_token_id, flat=args.flat_batches),
            train_dataset=self.follow(data.train),
            eval_dataset=data.evaluation,
            **kwargs,
        )
        self.mixture = data.mixture
        # Tokens are gathered from all processes; TRL knows of those that see the same only through accelerate.
        self._tp_size = args.tensor_parallel_size
        self.train_dataset = data.train

    def build_upstream(self, **kwargs: Any) -> None:
        """Run TRL's constructor, which must not know that rows are packed already."""
        with _packing_hidden(kwargs["args"]):
            super().build_upstream(**kwargs)


@contextmanager
def _packing_hidden(args: SFTArguments) -> Iterator[None]:
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
