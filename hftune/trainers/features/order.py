"""The order of training records, by weights where sources are mixed and anew each epoch; and their loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler
from transformers.trainer_utils import has_length

from hftune import interrupts
from hftune.arguments.training import StageArguments
from hftune.data.mixture import Mixture, MixtureSampler
from hftune.errors import ArgumentError, DataError, UserError
from hftune.trainers.features.run import Run


def data_seed(args: StageArguments) -> int:
    """The seed of the order of records."""
    return int(args.seed if args.data_seed is None else args.data_seed)


def mixture_sampler(mixture: Mixture, args: StageArguments) -> MixtureSampler:
    """Draws records of several sources as a mixture says.

    Raises:
        ArgumentError: The run asks for an order of its own.
    """
    if args.train_sampling_strategy != "random":
        raise ArgumentError(
            "records drawn by weights have an order of their own",
            place=f"--train_sampling_strategy {args.train_sampling_strategy}",
            fix="Leave it out, or leave out the weights of the sources.",
        )
    # The same seed on all ranks: accelerate shards one order between them.
    return MixtureSampler(mixture, data_seed(args))


def set_epoch(run: Run, loader: DataLoader[Any], number: int) -> None:
    """Make the order depend on (seed, epoch) alone, before the Trainer tells the sampler its epoch.

    Resumed in the middle of an epoch with several processes, the sampler lies under one more wrapper than accelerate's
    `set_epoch` looks through (accelerate 1.15), and would begin again with the order of epoch 0. Others draw one epoch
    after the other from a generator that no checkpoint holds: length groups and torch's own from torch's, TRL's repeats
    (1.16) from one of their own.
    """
    batches = innermost_batches(loader)
    sampler = getattr(batches, "sampler", batches)
    if isinstance(sampler, LengthGroupedSampler):
        # Of a step, as many as there are processes: transformers groups by the records of one process.
        sampler.batch_size = run.get_total_train_batch_size(run.args)
    if isinstance(sampler, BatchRebalanceSampler):
        sampler.seed = data_seed(run.args)  # transformers has 42 whatever the run's is
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(number)
    elif hasattr(sampler, "generator"):
        # Seed + number, as accelerate and TRL do.
        sampler.generator = torch.Generator().manual_seed(data_seed(run.args) + number)


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


def refuse_empty(run: Run, loader: DataLoader[Any]) -> None:
    """Refuse an empty loader: the Trainer would end at once, as if it had trained.

    Raises:
        DataError: There is no whole batch.
    """
    if not has_length(loader) or len(loader):
        return
    args, records = run.args, len(run.train_dataset)
    dropping = ", --dataloader_drop_last" if args.dataloader_drop_last else ""
    raise DataError(
        f"{records} training records fill no batch of {args.train_batch_size}, so that nothing would be trained",
        place=f"--per_device_train_batch_size{dropping}",
        fix="give more records or smaller batches" + (", or leave --dataloader_drop_last out" if dropping else ""),
    )


def prepare_workers(loader: DataLoader[Any]) -> None:
    """Have workers outlive signals to their parent: they set their signal handlers first."""
    inner: Any = getattr(loader, "base_dataloader", None)  # accelerate wraps the Trainer's
    # Whichever of the two makes the iterator starts the workers.
    for each in (loader, inner):
        if each is not None and each.num_workers:
            each.worker_init_fn = partial(start_worker, each.worker_init_fn)


def start_worker(given: Callable[[int], None] | None, number: int) -> None:
    """What a worker does first; torch has set its own handlers by then."""
    interrupts.keep_working()
    if given is not None:
        given(number)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Errors of DataLoader workers read as if this process had raised them.

    torch rebuilds them from the text of their traceback: it writes that into the message, and raises the class of the
    error with it as the only argument.
    """
    try:
        yield
    except UserError as error:
        name = f"{type(error).__module__}.{type(error).__qualname__}: "
        if not error.cause.startswith("Caught ") or name not in error.cause:
            raise
        raise type(error)(error.cause.rpartition(name)[2].rstrip()) from error
