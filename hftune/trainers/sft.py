"""Supervised fine-tuning: the answers of conversations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trl
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.training import SFTArguments
from hftune.data.corpus.streaming import StreamingDataset
from hftune.data.splits import Splits
from hftune.trainers.features.answer_loss import AnswerLoss
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.held_out_loss import HeldOutLoss
from hftune.trainers.features.streams import Streams
from hftune.trainers.features.token_figures import TokenFigures
from hftune.trainers.stage_trainer import StageTrainer, causal_collator


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
        streams = isinstance(data.train, StreamingDataset)
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
        collator = causal_collator(args, tokenizer)
        with _done_already(args):
            super().__init__(
                model=model,
                args=args,
                processing_class=tokenizer,
                data_collator=collator,
                train_dataset=sample_of(data.train) if streams else data.train,
                eval_dataset=data.evaluation,
                **kwargs,
            )
        self.record_order.mixture = data.mixture
        # Tokens are gathered from all processes; TRL knows of those that see the same only through accelerate.
        self._tp_size = args.tensor_parallel_size
        if streams:
            self.train_dataset = data.train

    def make_features(self) -> list[Feature]:
        """Streams before all others, the loss behind all others."""
        answers, held_out = AnswerLoss(measures_tokens=True), HeldOutLoss()
        return [TokenFigures(answers, held_out), Streams(), *super().make_features(), held_out, answers]


def sample_of(stream: StreamingDataset) -> Dataset:
    """The first example of a stream: TRL wants to see one, and takes no data sets but those of `datasets`."""
    example = next(iter(stream))
    return Dataset.from_list([{name: example[name].tolist() for name in ("input_ids", "labels")}])


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
