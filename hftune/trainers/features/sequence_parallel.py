"""Training in which processes share the tokens of rows: the same rows for a group, and of each row a slice for each.

The Trainer's own arithmetic does the rest. The loss of a step is the sum over the labels of all processes divided by
their number, and gradients are means over processes of a loss that was multiplied by their number: a slice is to it
what a shorter record is. So DeepSpeed and DDP need not know of slices, and ZeRO partitions over all processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import gather_object
from torch.utils.data import DataLoader

from hftune.compat.installing import replace_method
from hftune.data.collators import sliced
from hftune.distributed import ranks, sequence_parallel
from hftune.distributed.ranks import Mesh
from hftune.distributed.sequence_parallel import SequenceGroup
from hftune.logging import notice
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run


class SequenceParallel(Feature):
    """For `--sequence_parallel_size` above 1. This process's group becomes the run's `sequence_group`."""

    def __init__(self) -> None:
        self._rows_compared = False
        # Micro batches of the step so far, and that step.
        self._micro, self._micro_of = 0, -1

    def join(self, run: Run) -> None:
        """Loaders give the processes of a group the same rows."""
        mesh = run.args.mesh
        run.sequence_group = sequence_parallel.join_group(mesh)
        replace_method(run.accelerator, "prepare_data_loader", partial(_prepare_shared, mesh))
        # It cuts off what exceeds the rows of a last batch, and would take processes for rows.
        replace_method(run.accelerator, "gather_for_metrics", _gather_all)
        notice(
            f"sequence parallel: {mesh.sequence} processes share the tokens of each row, {mesh.data} group(s) have "
            "rows of their own"
        )

    def on_built(self, run: Run) -> None:
        """The noise of NEFTune is that of whole rows."""
        if run.neftune_noise_alpha:
            # The noise is scaled by the tokens of what the embedding sees, which is a slice now.
            run.neftune_noise_alpha /= math.sqrt(run.args.mesh.sequence)

    def batches(self, run: Run, batches: Iterator[Any]) -> Iterator[Any]:
        """Slices: labels are counted where they are trained."""
        return (self.slice(run, batch) for batch in batches)

    def compare_again(self) -> None:
        """An evaluation begins: whether a group has the same rows is looked at again."""
        self._rows_compared = False

    def own_random_numbers(self, run: Run) -> AbstractContextManager[None]:
        """Random numbers of its own in each process: it has other tokens and other heads."""
        step = run.state.global_step
        self._micro = self._micro + 1 if step == self._micro_of else 0
        self._micro_of = step
        place = (step * run.args.gradient_accumulation_steps + self._micro) * run.args.world_size
        # A prime keeps the seeds of two runs apart for a million micro batches.
        return _drawn_from(run.args.seed * 1_000_003 + place + ranks.rank())

    def slice(self, run: Run, batch: Inputs) -> Inputs:
        """This process's part of a batch."""
        group: SequenceGroup = run.sequence_group
        if not self._rows_compared:
            # Nothing later would notice: exchanges of slices of two rows work as well.
            ids = batch["input_ids"].flatten()
            places = torch.arange(1, len(ids) + 1, device=ids.device)
            same = group.same((ids * places).sum().to(run.args.device))
            assert same, "the processes of a group have different rows"
            self._rows_compared = True
        return sliced(batch, group.slice_of, group.size)


def _gather_all(accelerator: Accelerator, data: Any, use_gather_object: bool = False) -> Any:
    """From every process, all of it; the loaders repeat no row that has labels."""
    return gather_object(data) if use_gather_object else accelerator.gather(data)


def _prepare_shared(
    mesh: Mesh,
    accelerator: Accelerator,
    data_loader: DataLoader[Any],
    device_placement: bool | None = None,
    slice_fn_for_dispatch: Any = None,
) -> DataLoader[Any]:
    """What `Accelerator.prepare_data_loader` does, for as many receivers of rows as there are groups."""
    if getattr(data_loader, "_is_accelerate_prepared", False):
        if data_loader not in accelerator._dataloaders:
            accelerator._dataloaders.append(data_loader)
        return data_loader
    prepared = prepare_data_loader(
        data_loader,
        accelerator.device,
        num_processes=mesh.data,
        process_index=mesh.data_rank(ranks.rank()),
        split_batches=accelerator.split_batches,
        put_on_device=accelerator.device_placement if device_placement is None else device_placement,
        rng_types=accelerator.rng_types.copy(),
        dispatch_batches=accelerator.dispatch_batches,
        even_batches=accelerator.even_batches,
        slice_fn_for_dispatch=slice_fn_for_dispatch,
        use_seedable_sampler=accelerator.use_seedable_sampler,
        data_seed=accelerator.dataloader_config.data_seed,
        non_blocking=accelerator.non_blocking,
        use_stateful_dataloader=accelerator.use_stateful_dataloader,
    )
    accelerator._dataloaders.append(prepared)
    return prepared


@contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """Random numbers from this seed; afterwards the state is as before, since samplers draw from it as well."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
