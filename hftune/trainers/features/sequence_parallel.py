"""A Trainer whose processes share the tokens of rows: the same rows for a group, and of each row a slice for each.

The Trainer's own arithmetic does the rest. The loss of a step is the sum over the labels of all processes divided by
their number, and gradients are means over processes of a loss that was multiplied by their number: a slice is to it
what a shorter record is. So DeepSpeed and DDP need not know of slices, and ZeRO partitions over all processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import gather_object
from torch.utils.data import DataLoader

from hftune.data.slices import sliced
from hftune.distributed import ranks, sequence_parallel
from hftune.distributed.parallel import Mesh
from hftune.distributed.sequence_parallel import SequenceGroup
from hftune.logging import notice
from hftune.models.ulysses import stretch_by_whole_rows


class SequenceMixin:
    """Put before a `Trainer` subclass. Does nothing unless `--sequence_parallel_size` is above 1."""

    _sequence: SequenceGroup | None = None
    _rows_compared = False
    _micro, _micro_of = 0, -1
    """Micro batches of the step so far, and that step."""

    def __init__(self: Any, *positional: Any, **kwargs: Any) -> None:
        super().__init__(*positional, **kwargs)
        if self._sequence is None:
            return
        stretch_by_whole_rows(self.model)
        if self.neftune_noise_alpha:
            # The noise is scaled by the tokens of what the embedding sees, which is a slice now.
            self.neftune_noise_alpha /= math.sqrt(self._sequence.size)

    def create_accelerator_and_postprocess(self: Any) -> None:
        """As the Trainer's; loaders give the processes of a group the same rows."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        mesh = self.args.mesh
        if mesh.sequence == 1:
            return
        self._sequence = sequence_parallel.join(mesh)
        self.accelerator.prepare_data_loader = partial(_prepare_shared, self.accelerator, mesh)
        # It cuts off what exceeds the rows of a last batch, and would take processes for rows.
        self.accelerator.gather_for_metrics = partial(_gather_all, self.accelerator)
        notice(
            f"sequence parallel: {mesh.sequence} processes share the tokens of each row, {mesh.data} group(s) have "
            "rows of their own"
        )

    def get_total_train_batch_size(self: Any, args: Any) -> int:
        """Rows of a step: a group of processes counts once."""
        rows: int = super().get_total_train_batch_size(args)  # type: ignore[misc]
        return rows // (self._sequence.size if self._sequence else 1)

    def get_batch_samples(self: Any, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, of slices: labels are counted where they are trained."""
        if self._sequence is not None:
            epoch_iterator = map(self._slice, epoch_iterator)
        return super().get_batch_samples(epoch_iterator, *args, **kwargs)  # type: ignore[misc]

    def evaluation_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, once a group is known to have the same rows."""
        self._rows_compared = False
        return super().evaluation_loop(*args, **kwargs)  # type: ignore[misc]

    def prediction_step(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, of a slice."""
        if self._sequence is not None:
            inputs = self._slice(inputs)
        return super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def training_step(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the Trainer's, with random numbers of its own in each process: it has other tokens and other heads."""
        with self._own_randomness():
            step: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        return step

    def _own_randomness(self: Any) -> AbstractContextManager[None]:
        if self._sequence is None:
            return nullcontext()
        step = self.state.global_step
        self._micro = self._micro + 1 if step == self._micro_of else 0
        self._micro_of = step
        place = (step * self.args.gradient_accumulation_steps + self._micro) * self.args.world_size
        return _drawn_from(self.args.seed * 1_000_003 + place + ranks.rank())

    def _slice(self: Any, batch: dict[str, Any]) -> dict[str, Any]:
        group: SequenceGroup = self._sequence
        if not self._rows_compared:
            # Nothing later would notice: exchanges of slices of two rows work as well.
            ids = batch["input_ids"].flatten()
            places = torch.arange(1, len(ids) + 1, device=ids.device)
            same = group.same((ids * places).sum().to(self.args.device))
            assert same, "the processes of a group have different rows"
            self._rows_compared = True
        return sliced(batch, group.slice_of, group.size)

    def _read_row(self: Any, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """The logits (1, tokens, vocabulary) of a whole row, on every process."""
        group: SequenceGroup = self._sequence
        tokens = inputs["input_ids"].shape[1]
        own = sliced({**inputs, "labels": torch.full_like(inputs["input_ids"], -100)}, group.slice_of, group.size)
        del own["labels"], own["shift_labels"]
        return group.whole(model(**own).logits, tokens)


def _gather_all(accelerator: Accelerator, data: Any, use_gather_object: bool = False) -> Any:
    """From every process, all of it; the loaders repeat no row that has labels."""
    return gather_object(data) if use_gather_object else accelerator.gather(data)


def _prepare_shared(
    accelerator: Accelerator,
    mesh: Mesh,
    data_loader: DataLoader,
    device_placement: bool | None = None,
    slice_fn_for_dispatch: Any = None,
) -> DataLoader:
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
    """Random numbers from this seed; afterwards they go on as if nothing had been drawn: samplers draw them, too."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
