"""Supervised fine-tuning: the answers of conversations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trl
from datasets import Dataset
from peft import PeftModel
from torch.utils.data import IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.training import SFTArguments, StageArguments
from hftune.data.batches.collators import causal_collator
from hftune.data.splits import Splits
from hftune.on_demand import on_demand
from hftune.trainers.features.answer_loss import AnswerLoss
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.held_out_loss import HeldOutLoss
from hftune.trainers.features.token_figures import TokenFigures
from hftune.trainers.stage_trainer import StageTrainer


class SFTTrainer(StageTrainer, trl.SFTTrainer):
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
        self._streams = isinstance(data.train, IterableDataset)
        # TRL would tokenise the records a second time.
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            data_collator=causal_collator(tokenizer.pad_token_id, flat=args.flat_batches),
            train_dataset=sample_of(data.train) if self._streams else data.train,
            eval_dataset=data.evaluation,
            **kwargs,
        )
        self.record_order.mixture = data.mixture
        # Tokens are gathered from all processes; TRL knows of those that see the same only through accelerate.
        self._tp_size = args.tensor_parallel_size
        if self._streams:
            # The Trainer asks for it when training begins, and not before.
            self.train_dataset = data.train

    def build_upstream(self, **kwargs: Any) -> None:
        """Run TRL's constructor, which must not know that rows are packed already."""
        with _packing_hidden(kwargs["args"]):
            super().build_upstream(**kwargs)

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """Streams before all others, the loss behind all others."""
        answers, held_out = AnswerLoss(measures_tokens=True), HeldOutLoss()
        first: list[Feature] = [TokenFigures(answers, held_out)]
        if self._streams:
            first.append(on_demand("hftune.trainers.features.streams:Streams")())
        return [*first, *super().make_features(model, args), held_out, answers]


def sample_of(stream: IterableDataset[dict[str, Any]]) -> Dataset:
    """The first example of a stream: TRL wants to see one, and takes no data sets but those of `datasets`."""
    example = next(iter(stream))
    return Dataset.from_list([{name: example[name].tolist() for name in ("input_ids", "labels")}])


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
