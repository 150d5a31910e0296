"""A Trainer on a `StreamingDataset`: it writes down what is trained, and all ranks' notes go into every checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from hftune.data.corpus.progress import Progress, merged
from hftune.data.corpus.streaming import ORIGIN, StreamingDataset
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.logging import get_logger, notice
from hftune.trainers.features.blocks import LOADER_STATE_NAME, read_state, telling_faults


class StreamMixin:
    """Put before a `Trainer` subclass. Does nothing unless the training data are a `StreamingDataset`.

    The stream is dealt out to ranks and workers by the data set itself, so accelerate does not get to see the
    DataLoader: it would read on one process for all, or read everything on each. On going on, nothing is skipped by
    the Trainer; the stream leaves out what was trained.
    """

    def train(self: Any, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As `Trainer.train`; a stream is told where it stands first, and says in the end what it had to drop."""
        if isinstance(self.train_dataset, StreamingDataset) and resume_from_checkpoint:
            state, steps = read_state(str(resume_from_checkpoint))
            with telling_faults(str(resume_from_checkpoint)):
                self.train_dataset.resume(state)
            self.args.ignore_data_skip = True
            get_logger().info("data: going on after %d steps and %s trained tokens", steps, state["totals"]["tokens"])
        result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)  # type: ignore[misc]
        if isinstance(self.train_dataset, StreamingDataset):
            dropped = self.stream_progress().totals()["dropped"]
            if dropped:
                notice(f"{dropped} records of the stream gave no example and were dropped")
        return result

    def get_train_dataloader(self: Any) -> DataLoader:
        """As the Trainer's; batches of a stream also carry the origins of their examples."""
        if not isinstance(self.train_dataset, StreamingDataset):
            return super().get_train_dataloader()  # type: ignore[misc]
        args = self.args
        self._check_world()
        return DataLoader(
            self.train_dataset,
            batch_size=self._train_batch_size,
            collate_fn=WithOrigins(self.data_collator),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and not args.use_cpu,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
        )

    def _check_world(self: Any) -> None:
        """Every process, or tensor-parallel group of them, reads a share of its own."""
        alone = self._train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        if self.get_total_train_batch_size(self.args) * self.args.tensor_parallel_size != alone:
            raise ArgumentError(
                "sequence parallel processes train the same examples, and a stream gives each its own",
                place="--streaming",
                fix="Tokenise ahead of the run and give --tokenized_dir, or leave the parallelism out.",
            )

    def training_step(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the Trainer's; a micro-batch of a stream is noted as trained."""
        origins = inputs.pop(ORIGIN, ())
        loss = super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        if origins:
            self.train_dataset.progress.record(origins)
        return loss

    def stream_progress(self: Any) -> Progress:
        """What all ranks have trained; every rank must ask."""
        own = self.train_dataset.progress
        if not ranks.is_distributed():
            return own
        everyone: list[Any] = [None] * ranks.world_size()
        dist.all_gather_object(everyone, own)
        # Processes of a group have noted the same.
        return merged(everyone[:: self.args.mesh.sharing])

    def count_trained_tokens(self: Any) -> int | None:
        """Tokens with a loss so far, of a stream; every rank must ask. Else what the parent says."""
        if isinstance(self.train_dataset, StreamingDataset):
            return self.stream_progress().totals()["tokens"]
        parent = getattr(super(), "count_trained_tokens", None)
        return parent() if parent is not None else None

    def _save_beside(self: Any, folder: Path) -> None:
        """How far the stream has been trained; all ranks know a part."""
        super()._save_beside(folder)  # type: ignore[misc]
        if isinstance(self.train_dataset, StreamingDataset):
            progress = self.stream_progress()
            if ranks.is_main():
                text = json.dumps(self.train_dataset.state(progress), indent=1)
                (folder / LOADER_STATE_NAME).write_text(text, encoding="utf-8")

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As `Trainer.log`. The length of a stream is not known: its "epoch" is the share of `--max_steps`."""
        if isinstance(self.train_dataset, StreamingDataset):
            self.state.epoch = self.state.global_step / self.state.max_steps
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


class WithOrigins:
    """A collator that keeps the origins of the examples beside the batch."""

    def __init__(self, collator: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """The collator's batch, and under ORIGIN a list of `Origin`."""
        origins = [feature.pop(ORIGIN) for feature in features]
        return {**self.collator(features), ORIGIN: origins}
