"""The loss of held-out data, per token: the same number however the data are batched, packed or spread over ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader

from hftune.constants import IGNORE_INDEX


class TokenLossMixin:
    """Put before a `Trainer` subclass whose loss is a mean over trained tokens.

    transformers averages the means of batches, which is another number for each way to form batches, and repeats
    records so that every rank has a full last batch. Here sums are added up, and repeated records train nothing.
    """

    _measures = False
    tokens_per_batch: tuple[float, ...] = ()
    """Trained tokens of each batch of the last evaluation, over all ranks."""

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> DataLoader:
        """As the Trainer's, with as many records as fill every rank's last batch."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]  # one of several, by its name
        if isinstance(dataset, Dataset):
            dataset = filled_up(dataset, self.args.eval_batch_size * self.args.data_parallel_size)
        return super().get_eval_dataloader(dataset)  # type: ignore[misc]

    def evaluation_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, with the loss over all tokens."""
        self._sums: list[tuple[float, int]] = []
        self._measures = True
        output = super().evaluation_loop(*args, **kwargs)  # type: ignore[misc]
        self._measures = False
        sums = torch.tensor(self._sums, dtype=torch.float64, device=self.args.device).view(-1, 2)
        losses, tokens = self.accelerator.reduce(sums, "sum").T.tolist()
        self.tokens_per_batch = tuple(tokens)
        for name in output.metrics:
            if name.endswith("_loss") and sum(tokens):
                output.metrics[name] = sum(losses) / sum(tokens)
        return output

    def _get_num_items_in_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's in training. A held-out batch's loss is the mean over its own tokens on its own rank.

        transformers 5.23 counts those of all ranks there, and what is measured is no mean where ranks have unlike many.
        """
        return None if self._measures else super()._get_num_items_in_batch(*args, **kwargs)  # type: ignore[misc]

    def prediction_step(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; the batch's loss and tokens are added up on the way."""
        # The first label of a row has no token before it.
        predicted = inputs["shift_labels"] if "shift_labels" in inputs else inputs["labels"][..., 1:]
        tokens = int((predicted != IGNORE_INDEX).sum())
        result = super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        self._sums.append((float(result[0]) * tokens if tokens else 0.0, tokens))
        if not tokens and not math.isfinite(float(result[0])):
            # 0 / 0 of a batch of filling; the Trainer takes the mean of all of these before we replace it.
            result = (torch.zeros_like(result[0]), *result[1:])
        return result


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Of values that are means over `weights` tokens each; 0 for no token."""
    assert len(values) == len(weights), "a value a batch"
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0


def filled_up(dataset: Dataset, multiple: int) -> Dataset:
    """The dataset, with copies of its first record, labels masked, up to a multiple of `multiple` records."""
    missing = -len(dataset) % multiple
    if not missing or not len(dataset):
        return dataset
    first = dataset[0]
    masked = {**first, "labels": [IGNORE_INDEX] * len(first["labels"])}
    columns = {name: [masked[name]] * missing for name in dataset.column_names}
    return concatenate_datasets([dataset, Dataset.from_dict(columns, features=dataset.features)])
