"""Training on a `StreamingDataset`: it writes down what is trained, and all ranks' notes go into every checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from hftune.data.corpus.progress import Progress
from hftune.data.corpus.streaming import ORIGIN, StreamingDataset
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.logging import get_logger, notice
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.loader_state import LOADER_STATE_NAME, read_state, state_errors
from hftune.trainers.features.run import Inputs, Run


class Streams(Feature):
    """Does nothing unless the training data are a `StreamingDataset`.

    The stream is shared between ranks and workers by the data set itself, so accelerate does not get to see the
    DataLoader: it would read on one process for all, or read everything on each. On resuming, nothing is skipped by
    the Trainer; the stream leaves out what was trained.
    """

    def __init__(self) -> None:
        self._origins: Any = ()  # of the micro batch that is being trained

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """Tell the stream where it stands."""
        if isinstance(run.train_dataset, StreamingDataset) and checkpoint:
            state, steps = read_state(checkpoint)
            with state_errors(checkpoint):
                run.train_dataset.resume(state)
            run.args.ignore_data_skip = True
            get_logger().info("data: resuming after %d steps and %s trained tokens", steps, state["totals"]["tokens"])

    def after_train(self, run: Run) -> None:
        """Say what the stream had to drop."""
        if isinstance(run.train_dataset, StreamingDataset):
            dropped = run.train_dataset.totals(progress_of(run))["dropped"]
            if dropped:
                notice(f"{dropped} records of the stream gave no example and were dropped")

    def make_train_loader(self, run: Run) -> DataLoader[Any] | None:
        """Batches of a stream also carry the origins of their examples."""
        if not isinstance(run.train_dataset, StreamingDataset):
            return None
        args = run.args
        check_world(run)
        # Workers tokenise; batches are cut here, so that they are the same with any number of workers.
        run.train_dataset.loading = {
            "num_workers": args.dataloader_num_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }
        return DataLoader(
            run.train_dataset,
            batch_size=run._train_batch_size,
            collate_fn=WithOrigins(run.data_collator),
            pin_memory=args.dataloader_pin_memory and not args.use_cpu,
        )

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """Take the origins from the batch: they are no input of a model."""
        self._origins = inputs.pop(ORIGIN, ())

    def after_step(self, run: Run, inputs: Inputs, loss: torch.Tensor) -> None:
        """Note the micro batch as trained."""
        if self._origins:
            run.train_dataset.progress.record(self._origins)

    def save_state(self, run: Run, folder: Path) -> None:
        """How far the stream has been trained; each rank knows its own part."""
        if isinstance(run.train_dataset, StreamingDataset):
            everyone = progress_of(run)
            if ranks.is_main():
                text = json.dumps(run.train_dataset.state(everyone), indent=1)
                (folder / LOADER_STATE_NAME).write_text(text, encoding="utf-8")

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """The length of a stream is not known: its "epoch" is the share of `--max_steps`."""
        if isinstance(run.train_dataset, StreamingDataset):
            run.state.epoch = run.state.global_step / run.state.max_steps

    def trained_tokens(self, run: Run) -> int | None:
        """Tokens with a loss so far; every rank must ask. None for other data."""
        if not isinstance(run.train_dataset, StreamingDataset):
            return None
        return int(run.train_dataset.totals(progress_of(run))["tokens"])


def check_world(run: Run) -> None:
    """Every process, or tensor-parallel group of them, reads a share of its own."""
    alone = run._train_batch_size * run.args.gradient_accumulation_steps * run.args.world_size
    if run.get_total_train_batch_size(run.args) * run.args.tensor_parallel_size != alone:
        raise ArgumentError(
            "sequence parallel processes train the same examples, and a stream gives each its own",
            place="--streaming",
            fix="Tokenise ahead of the run and give --tokenized_dir, or leave the parallelism out.",
        )


def progress_of(run: Run) -> list[Progress]:
    """How far every rank of a stream is, in their order; every rank must ask."""
    own: Progress = run.train_dataset.progress
    if not ranks.is_distributed():
        return [own]
    everyone: list[Any] = [None] * ranks.world_size()
    dist.all_gather_object(everyone, own)
    # Processes of a group have noted the same.
    return everyone[:: run.args.mesh.sharing]


class WithOrigins:
    """A collator that adds the origins of the examples to the batch."""

    def __init__(self, collator: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """The collator's batch, and under ORIGIN a list of `Origin`."""
        origins = [feature.pop(ORIGIN) for feature in features]
        return {**self.collator(features), ORIGIN: origins}
