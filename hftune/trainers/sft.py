"""Supervised fine-tuning: the answers of conversations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import SFTArguments
from hftune.data.corpus.streaming import StreamingDataset
from hftune.data.splits import Splits
from hftune.trainers.base import HftuneTrainerMixin, causal_collator
from hftune.trainers.evaluation import TokenLossMixin, weighted_mean
from hftune.trainers.streams import StreamMixin


class SFTTrainer(StreamMixin, HftuneTrainerMixin, TokenLossMixin, trl.SFTTrainer):
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

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As TRL's; with `loss_weights`, the loss of each token is scaled by its turn's weight.

        The sum is still divided by the number of trained tokens, so a weight of 0.5 halves a turn's share.
        """
        weights = inputs.pop("loss_weights", None)
        scaled = model if weights is None else _Scaled(model, weights)
        return super().compute_loss(scaled, inputs, *args, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "loss_weights" not in self._signature_columns:
            self._signature_columns.append("loss_weights")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's; token accuracy and entropy of an evaluation are means over its tokens, not over its batches."""
        if not self.model.training:
            for name in ("entropy", "mean_token_accuracy"):
                values = self._metrics["eval"].get(name)  # looking it up with [] would make an empty entry
                if values:
                    self._metrics["eval"][name] = [weighted_mean(values, self.tokens_per_batch)]
        super().log(logs, start_time)


def sample_of(stream: StreamingDataset) -> Dataset:
    """The first example of a stream: TRL wants to see one, and takes no data sets but those of `datasets`."""
    example = next(iter(stream))
    return Dataset.from_list([{name: example[name].tolist() for name in ("input_ids", "labels")}])


class _Scaled:
    """A model whose log-probabilities, which TRL sums up as its loss, are scaled by weights (batch, length)."""

    def __init__(self, model: Any, weights: torch.Tensor) -> None:
        self.model, self.weights = model, weights

    def __call__(self, **inputs: Any) -> Any:
        outputs = self.model(**inputs)
        if getattr(outputs, "log_probs", None) is not None:
            # Position t holds the token t + 1; slices of rows come with weights that are shifted like their labels.
            weights = self.weights if "shift_labels" in inputs else self.weights[:, 1:]
            outputs.log_probs = outputs.log_probs * weights
        return outputs


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
