"""Which records each step trains: the same on any number of processes, with any split of a step, stopped and resumed.

accelerate's own loaders read them, as in a run; hftune says which epoch it is and which repeated rows do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

from hftune.data.collators import CausalCollator
from hftune.distributed.ranks import Mesh
from hftune.trainers.features import repeated_rows
from hftune.trainers.features.order import set_epoch
from hftune.trainers.features.repeated_rows import RepeatedRows
from tests.unit.trainers.features import made_up

IN_A_STEP = 12


@dataclass(frozen=True)
class World:
    """How the records of a step are split; `workers` read them in each process."""

    processes: int
    size: int
    workers: int = 0

    @property
    def accumulation(self) -> int:
        """Micro batches of a step in a process."""
        return IN_A_STEP // (self.processes * self.size)


WORLDS = [World(p, s) for p in (1, 2, 3, 4) for s in (1, 2, 3, 4, 6, 12) if IN_A_STEP % (p * s) == 0]


def collate(numbers: list[int]) -> dict[str, Any]:
    """A row of two tokens a record, all of them its number + 1."""
    return CausalCollator(0)([{"input_ids": [number + 1] * 2, "labels": [-100, number + 1]} for number in numbers])


def micro_batches(world: World, rank: int, records: int, seed: int, epoch: int, done: int) -> Iterator[list[int]]:
    """Numbers of the records that count in each micro batch of a process, after `done` of them."""
    data: Any = list(range(records))
    plain = DataLoader(
        data, world.size, sampler=RandomSampler(data), collate_fn=collate, num_workers=world.workers
    )  # fmt: skip
    loader = prepare_data_loader(
        plain, num_processes=world.processes, process_index=rank, use_seedable_sampler=True, data_seed=seed
    )
    loader = skip_first_batches(loader, done) if done else loader
    mesh = Mesh(world=world.processes)
    args = {"mesh": mesh, "gradient_accumulation_steps": world.accumulation, "data_parallel_size": world.processes}
    run = made_up.run(args=args, _train_batch_size=world.size, data_collator=CausalCollator(0))
    run.get_total_train_batch_size = lambda args: IN_A_STEP
    rows = RepeatedRows()
    set_epoch(run, loader, epoch)
    rows.begin(run, loader, done)
    loader.set_epoch(epoch)  # as the Trainer does
    for batch in rows.batches(run, iter(loader)):
        yield sorted({int(label) - 1 for label in batch["labels"].flatten() if label != -100})


def steps(world: World, records: int, seed: int, epoch: int = 0, done: int = 0) -> list[list[int]]:
    """Numbers of the records of each step of an epoch over all processes, after `done` steps."""
    parts: list[list[list[int]]] = []
    for rank in range(world.processes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(repeated_rows, "ranks", SimpleNamespace(rank=lambda rank=rank: rank))
            parts.append(list(micro_batches(world, rank, records, seed, epoch, done * world.accumulation)))
    assert len({len(part) for part in parts}) == 1, "a process waits for the others"
    at = range(0, len(parts[0]), world.accumulation)
    return [sorted(n for part in parts for one in part[a : a + world.accumulation] for n in one) for a in at]


@settings(max_examples=20)
@given(
    records=st.integers(1, 50), seed=st.integers(0, 99), epoch=st.integers(0, 3),
    one=st.sampled_from(WORLDS), other=st.sampled_from(WORLDS), stop=st.integers(0, 4),
)  # fmt: skip
def test_each_step_has_the_same_records(
    records: int, seed: int, epoch: int, one: World, other: World, stop: int
) -> None:
    whole = steps(one, records, seed, epoch)
    assert sorted(number for step in whole for number in step) == list(range(records)), "each once"
    assert [len(step) for step in whole[:-1]] == [IN_A_STEP] * (len(whole) - 1)
    # In every epoch its own order.
    assert whole == steps(one, records, seed, epoch)
    assert records < 20 or (
        whole != steps(one, records, seed, epoch + 1) and whole != steps(one, records, seed + 1, epoch)
    )
    if stop < len(whole):
        assert steps(other, records, seed, epoch, done=stop) == whole[stop:], "resumed on another world"


@pytest.mark.parametrize("done", [0, 2])
def test_processes_that_read_ahead_change_nothing(done: int) -> None:
    assert steps(World(2, 3, workers=2), 29, 1, done=done) == steps(World(1, 4), 29, 1, done=done)
