"""The order of training records: drawn by weights where sources are mixed, and another one in each epoch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler

from hftune.arguments.training import StageArguments
from hftune.data.mixture import Mixture, MixtureSampler
from hftune.errors import ArgumentError
from hftune.trainers.features.feature import Epoch, Feature
from hftune.trainers.features.run import Run


class RecordOrder(Feature):
    """Draws records of several sources as a mixture says, and tells samplers their epoch.

    Attributes:
        mixture: Set by the trainer of a stage; None: all records once an epoch.
    """

    mixture: Mixture | None = None

    def train_sampler(self, run: Run, dataset: Any) -> Sampler[Any] | None:
        """A mixture of sources is drawn by its weights."""
        if self.mixture is None:
            return None
        if run.args.train_sampling_strategy != "random":
            raise ArgumentError(
                "records drawn by weights have an order of their own",
                place=f"--train_sampling_strategy {run.args.train_sampling_strategy}",
                fix="Leave it out, or leave out the weights of the sources.",
            )
        # The same seed on all ranks: accelerate shards one order between them.
        return MixtureSampler(self.mixture, data_seed(run.args))

    def count_examples(self, run: Run, loader: DataLoader[Any]) -> int | None:
        """Of the virtual epoch where sources are mixed."""
        sampler = innermost_sampler(loader)
        return len(sampler) if isinstance(sampler, MixtureSampler) else None

    def before_epoch(self, run: Run, epoch: Epoch) -> None:
        """Make the order depend on (seed, epoch) alone, before the Trainer tells the sampler its epoch.

        Resumed in the middle of an epoch with several processes, the sampler lies under one more wrapper than
        accelerate's `set_epoch` looks through (accelerate 1.15), and would begin again with the order of epoch 0.
        Others draw one epoch after the other from a generator that no checkpoint holds: length groups and torch's own
        from torch's, TRL's repeats (1.16) from one of their own.
        """
        batches = innermost_batches(epoch.loader)
        sampler = getattr(batches, "sampler", batches)
        if isinstance(sampler, LengthGroupedSampler):
            # Of a step, as many as there are processes: transformers groups by the records of one process.
            sampler.batch_size = run.get_total_train_batch_size(run.args)
        if isinstance(sampler, BatchRebalanceSampler):
            sampler.seed = data_seed(run.args)  # transformers has 42 whatever the run's is
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch.number)
        elif hasattr(sampler, "generator"):
            # Seed + number, as accelerate and TRL do.
            sampler.generator = torch.Generator().manual_seed(data_seed(run.args) + epoch.number)


def data_seed(args: StageArguments) -> int:
    """The seed of the order of records."""
    return int(args.seed if args.data_seed is None else args.data_seed)


def innermost_batches(dataloader: DataLoader[Any]) -> Any:
    """The batch sampler below those that accelerate wraps around each other."""
    batches: Any = getattr(dataloader, "batch_sampler", None)
    # accelerate wraps once for sharding, and once more to skip batches when a run resumes.
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    return batches


def innermost_sampler(dataloader: DataLoader[Any]) -> Any:
    """The sampler of single indices; None where batches are drawn as a whole."""
    return getattr(innermost_batches(dataloader), "sampler", None)
