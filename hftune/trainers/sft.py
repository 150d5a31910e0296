"""Supervised fine-tuning: the answers of conversations."""

from __future__ import annotations

from typing import Any

import trl
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import SFTArguments
from hftune.data.collators import CausalCollator
from hftune.data.splits import Splits
from hftune.data.streaming import StreamingDataset
from hftune.trainers.base import HftuneTrainerMixin
from hftune.trainers.streams import StreamMixin


class SFTTrainer(StreamMixin, HftuneTrainerMixin, trl.SFTTrainer):
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
        streams = isinstance(data.train, StreamingDataset)
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            data_collator=CausalCollator(tokenizer.pad_token_id),
            train_dataset=sample_of(data.train) if streams else data.train,
            eval_dataset=data.evaluation,
            **kwargs,
        )
        self.mixture = data.mixture
        if streams:
            self.train_dataset = data.train


def sample_of(stream: StreamingDataset) -> Dataset:
    """The first example of a stream: TRL wants to see one, and takes no data sets but those of `datasets`."""
    example = next(iter(stream))
    return Dataset.from_list([{name: example[name].tolist() for name in ("input_ids", "labels")}])
