"""The loss of held-out data, per token: the same number however the data are batched, packed or spread over ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets

from hftune.constants import IGNORE_INDEX
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run


class HeldOutLoss(Feature):
    """For trainers whose loss is a mean over trained tokens.

    transformers averages the means of batches, which is another number for each way to form batches, and repeats
    records so that every rank has a full last batch. Here sums are added up, and repeated records train nothing.

    Attributes:
        tokens_per_batch: Trained tokens of each batch of the last evaluation, over all ranks.
    """

    def __init__(self) -> None:
        self.tokens_per_batch: tuple[float, ...] = ()
        self._measures = False
        self._sums: list[tuple[float, int]] = []  # loss and tokens of each batch on this rank
        self._tokens = 0  # of the batch that is being evaluated

    def evaluation_data(self, run: Run, dataset: Any) -> Any:
        """As many records as fill every rank's last batch."""
        if isinstance(dataset, Dataset):
            return padded_with_ignored(dataset, run.args.eval_batch_size * run.args.data_parallel_size)
        return dataset

    def before_evaluation_loop(self, run: Run, prefix: str) -> None:
        """Begin to add up."""
        self._sums, self._measures = [], True

    def after_evaluation_loop(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """The loss over all tokens."""
        self._measures = False
        sums = torch.tensor(self._sums, dtype=torch.float64, device=run.args.device).view(-1, 2)
        # Every rank has as many batches, which `evaluation_data` sees to: shapes agree.
        losses, tokens = run.accelerator.reduce(sums, "sum").T.tolist()
        self.tokens_per_batch = tuple(tokens)
        # The Trainer's own alone: metrics of the user's may end in the same word.
        if f"{prefix}_loss" in metrics and sum(tokens):
            metrics[f"{prefix}_loss"] = sum(losses) / sum(tokens)

    def counts_labels(self, run: Run) -> bool:
        """In training. A held-out batch's loss is the mean over its own tokens on its own rank.

        transformers 5.23 counts those of all ranks there, and what is measured is no mean where ranks have unlike many.
        """
        return not self._measures

    def before_prediction(self, run: Run, model: Any, inputs: Inputs) -> Inputs:
        """Count the batch's labels."""
        # The first label of a row has no token before it.
        predicted = inputs["shift_labels"] if "shift_labels" in inputs else inputs["labels"][..., 1:]
        self._tokens = int((predicted != IGNORE_INDEX).sum())
        return inputs

    def after_prediction(self, run: Run, inputs: Inputs, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """Add up loss and labels."""
        loss, tokens = result[0], self._tokens
        self._sums.append((float(loss) * tokens if tokens else 0.0, tokens))
        if not tokens and not math.isfinite(float(loss)):
            # 0 / 0 of a batch of filling; the Trainer takes the mean of all of these before we replace it.
            return (torch.zeros_like(loss), *result[1:])
        return result


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Of values that are means over `weights` tokens each; 0 for no token."""
    assert len(values) == len(weights), "a value a batch"
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0


def padded_with_ignored(dataset: Dataset, multiple: int) -> Dataset:
    """The dataset, with copies of its first record, labels masked, up to a multiple of `multiple` records."""
    missing = -len(dataset) % multiple
    if not missing or not len(dataset):
        return dataset
    first = dataset[0]
    # A real record, since a collator and a model may refuse an empty one.
    masked = {**first, "labels": [IGNORE_INDEX] * len(first["labels"])}
    columns = {name: [masked[name]] * missing for name in dataset.column_names}
    return concatenate_datasets([dataset, Dataset.from_dict(columns, features=dataset.features)])
