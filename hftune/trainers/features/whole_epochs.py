"""The end of an epoch on several processes: no record is trained twice to fill up the last batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from hftune.constants import IGNORE_INDEX
from hftune.data.collators import CausalCollator, FlatCollator
from hftune.distributed import ranks

ROWS = "row_lengths"


class WholeEpochMixin:
    """Put before a `Trainer` subclass. Does nothing unless records are collated for a token loss.

    Processes need as many batches each, so accelerate completes the last ones with records from the epoch's beginning.
    Here those rows lose their labels. The loss is a sum over the labels of a step, over all processes, divided by
    their number, so that it and its gradient are those of one process that sees the rest of the records alone.
    """

    _place = 0
    _records = 0

    def get_train_dataloader(self: Any) -> DataLoader:
        """As the Trainer's; batches without padding say where their rows begin."""
        collator = self.data_collator
        if isinstance(collator, FlatCollator):
            self.data_collator = WithRows(collator)
        try:
            return super().get_train_dataloader()  # type: ignore[misc]
        finally:
            self.data_collator = collator

    def _run_epoch(self: Any, *, train_dataloader: DataLoader, epoch: int, **kwargs: Any) -> Any:
        """As the Trainer's; from here on batches are counted."""
        sampler = innermost_sampler(train_dataloader)
        self._records = len(sampler) if hasattr(sampler, "__len__") and self._dealt_out_in_turn() else 0
        goes_on = kwargs["resume_from_checkpoint"] is not None and epoch == kwargs["epochs_trained"]
        self._place = kwargs["steps_trained_in_current_epoch"] if goes_on and not self.args.ignore_data_skip else 0
        return super()._run_epoch(train_dataloader=train_dataloader, epoch=epoch, **kwargs)  # type: ignore[misc]

    def _dealt_out_in_turn(self: Any) -> bool:
        """Whether each process, or group of them, gets batches of its own: not split, not sent by one."""
        alone = self._train_batch_size * self.args.gradient_accumulation_steps * self.args.data_parallel_size
        split = self.accelerator.split_batches or self.accelerator.dispatch_batches
        return not split and self.get_total_train_batch_size(self.args) == alone

    def get_batch_samples(self: Any, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, without the labels of what has been seen in this epoch."""
        batches = self._without_repeats(epoch_iterator)
        return super().get_batch_samples(batches, *args, **kwargs)  # type: ignore[misc]

    def _without_repeats(self: Any, batches: Iterator[Any]) -> Iterator[Any]:
        mesh = self.args.mesh
        for batch in batches:
            lengths = batch.pop(ROWS, None) if isinstance(batch, dict) else None
            if isinstance(getattr(self.data_collator, "inner", self.data_collator), CausalCollator | FlatCollator):
                size = self._train_batch_size
                # accelerate deals batches out one by one, in turn; a group of processes gets the same.
                first = (self._place * mesh.data + mesh.data_rank(ranks.rank())) * size
                new = max(0, self._records - first) if self._records and mesh.data > 1 else size
                if new < size:
                    ignore_rows(batch["labels"], new, lengths)
            self._place += 1
            yield batch


class WithRows:
    """A collator that keeps the lengths of the rows which it has put into one."""

    def __init__(self, inner: FlatCollator) -> None:
        self.inner = inner

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """The collator's batch, and under ROWS the tokens of each feature."""
        return {**self.inner(features), ROWS: [len(feature["input_ids"]) for feature in features]}


def ignore_rows(labels: torch.Tensor, kept: int, lengths: list[int] | None) -> None:
    """Take the labels from all rows but the first, in place.

    Args:
        labels: LongTensor (rows, length), or (1, tokens) with the rows end to end.
        kept: Rows that keep theirs.
        lengths: Tokens of each row, where they lie end to end.
    """
    if lengths is None:
        labels[kept:] = IGNORE_INDEX
    else:
        labels[:, sum(lengths[:kept]) :] = IGNORE_INDEX


def innermost_sampler(dataloader: DataLoader) -> Any:
    """The sampler of single indices, below the batch samplers that accelerate wraps around each other."""
    batches: Any = getattr(dataloader, "batch_sampler", None)
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    return getattr(batches, "sampler", None)
