"""Supervised fine-tuning: the answers of conversations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trl
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import SFTArguments
from hftune.data.corpus.streaming import StreamingDataset
from hftune.data.splits import Splits
from hftune.trainers.features.answer_loss import AnswerLossMixin
from hftune.trainers.features.held_out_loss import TokenLossMixin, weighted_mean
from hftune.trainers.features.streams import StreamMixin
from hftune.trainers.stage_trainer import HftuneTrainerMixin, causal_collator


class SFTTrainer(StreamMixin, HftuneTrainerMixin, TokenLossMixin, AnswerLossMixin, trl.SFTTrainer):
    """TRL's trainer on records that hftune has tokenised and masked; token accuracy and entropy are TRL's."""

    reports_perplexity = True
    measures_tokens = True

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
        self.mixture = data.mixture
        # Tokens are gathered from all processes; TRL knows of those that see the same only through accelerate.
        self._tp_size = args.tensor_parallel_size
        if streams:
            self.train_dataset = data.train

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "loss_weights" not in self._signature_columns:
            self._signature_columns.append("loss_weights")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's; token accuracy and entropy are means over the tokens since the last log, not over batches."""
        mode = "train" if self.model.training else "eval"
        if self.token_sums[mode].sums is not None:
            means, read = self.token_sums[mode].take(self.accelerator)
            if mode == "train":
                self._total_train_tokens += read // self._tp_size
            measured = {**means, "num_tokens": self._total_train_tokens}
            self._metrics[mode] |= {name: [value] for name, value in measured.items()}
        elif mode == "eval":  # batches went TRL's own way
            for name in ("entropy", "mean_token_accuracy"):
                values = self._metrics[mode].get(name)  # looking it up with [] would make an empty entry
                if values:
                    self._metrics[mode][name] = [weighted_mean(values, self.tokens_per_batch)]
        super().log(logs, start_time)


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
