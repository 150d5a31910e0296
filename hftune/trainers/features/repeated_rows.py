"""The end of an epoch on several processes: no record is trained twice to fill up the last batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from hftune.constants import FILLER, IGNORE_INDEX, LABEL_COUNT
from hftune.data.collators import CausalCollator, FlatCollator
from hftune.distributed import ranks
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.order import innermost_sampler
from hftune.trainers.features.run import Run

ROWS = "rows"
OF_TOKENS = (CausalCollator, FlatCollator)


class RepeatedRows(Feature):
    """Does nothing unless records are collated for a token loss, or pairs of answers are.

    Processes need as many batches each, so accelerate completes the last ones with records from the epoch's beginning.
    Here those rows lose their labels, and those pairs are marked. The loss is a sum over what is left of a step, over
    all processes, divided by its number, so that it and its gradient are those of one process that sees the rest of
    the records alone.
    """

    def __init__(self) -> None:
        self._place = 0  # micro batches of the epoch that this process has read
        self._records = 0  # of an epoch; 0 where their number or their way to the processes is not known

    @contextmanager
    def said_by_collator(self, run: Run) -> Iterator[None]:
        """While a loader is made: its batches say how long their rows are, and how many labels those have."""
        collator = run.data_collator
        # A process that reads for all would send the rows of all.
        if isinstance(collator, OF_TOKENS) and not run.accelerator.dispatch_batches:
            run.data_collator = WithRows(collator)
        try:
            yield
        finally:
            run.data_collator = collator

    def begin(self, run: Run, loader: DataLoader[Any], done: int) -> None:
        """An epoch begins, or the rest of one: from here on batches are counted.

        Args:
            done: Micro batches of it that a run before an interruption has trained; 0 for an epoch that begins anew.
        """
        sampler = innermost_sampler(loader)
        self._records = len(sampler) if hasattr(sampler, "__len__") and each_reads_its_own(run) else 0
        self._place = 0 if run.args.ignore_data_skip else done

    def batches(self, run: Run, batches: Iterator[Any]) -> Iterator[Any]:
        """Without the labels of what has been seen in this epoch, or with its marks."""
        mesh = run.args.mesh
        collator = getattr(run.data_collator, "inner", run.data_collator)
        for batch in batches:
            lengths, labels = batch.pop(ROWS, (None, None)) if isinstance(batch, dict) else (None, None)
            size = run._train_batch_size
            # accelerate gives batches to processes one by one, in turn; a group of processes gets the same.
            first = (self._place * mesh.data + mesh.data_rank(ranks.rank())) * size
            new = max(0, self._records - first) if self._records and mesh.data > 1 else size
            if new < size and isinstance(collator, OF_TOKENS):
                flat = isinstance(collator, FlatCollator)
                batch[FILLER] = rows_behind(batch["labels"], new, lengths if flat else None)
                batch["labels"].masked_fill_(batch[FILLER], IGNORE_INDEX)
            elif new < size and getattr(collator, "loss_knows_fillers", False):
                batch[FILLER] = torch.arange(size) >= new
            if labels is not None:
                batch[LABEL_COUNT] = sum(labels[:new])
            self._place += 1
            yield batch


def each_reads_its_own(run: Run) -> bool:
    """Whether each process, or group of them, gets batches of its own: not split, not sent by one."""
    alone = run._train_batch_size * run.args.gradient_accumulation_steps * run.args.data_parallel_size
    split = run.accelerator.split_batches or run.accelerator.dispatch_batches
    return not split and run.get_total_train_batch_size(run.args) == alone


class WithRows:
    """A collator that keeps what only a device could tell later, while a batch is in the host's memory."""

    def __init__(self, inner: CausalCollator | FlatCollator) -> None:
        self.inner = inner

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """The collator's batch, and under ROWS the tokens of each feature, and those of them that have a loss."""
        batch: dict[str, Any] = self.inner(features)
        lengths = [len(feature["input_ids"]) for feature in features]
        trained = batch["labels"] != IGNORE_INDEX
        # Nothing predicts the first token of a row; of a document in a flat row it has no label.
        rows = trained[0].split(lengths) if isinstance(self.inner, FlatCollator) else trained[:, 1:]
        return {**batch, ROWS: (lengths, [int(row.sum()) for row in rows])}


def rows_behind(labels: torch.Tensor, kept: int, lengths: list[int] | None) -> torch.Tensor:
    """Which tokens are of other rows than the first: a mask of the shape of the labels.

    Args:
        labels: LongTensor (rows, length), or (1, tokens) with the rows end to end.
        kept: The first rows.
        lengths: Tokens of each row, where they lie end to end.
    """
    behind = torch.zeros_like(labels, dtype=torch.bool)
    if lengths is None:
        behind[kept:] = True
    else:
        behind[:, sum(lengths[:kept]) :] = True
    return behind
