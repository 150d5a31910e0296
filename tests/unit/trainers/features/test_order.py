"""The order of records, and what samplers are told of their epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler
from trl.trainer.utils import RepeatSampler

from hftune import interrupts
from hftune.errors import ArgumentError, DataError
from hftune.trainers.features import order
from hftune.trainers.features.order import (
    data_seed,
    innermost_sampler,
    mixture_sampler,
    prepare_workers,
    set_epoch,
    start_worker,
    worker_errors,
)
from hftune.trainers.online.base import OnlineTrainer
from tests.unit.trainers.features import made_up


class Sampler:
    """Notes its epoch."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def loader(sampler: Any, depth: int) -> Any:
    """A loader whose sampler lies below this many batch samplers."""
    batches = SimpleNamespace(sampler=sampler)
    for _ in range(depth):
        batches = SimpleNamespace(batch_sampler=batches)
    return SimpleNamespace(batch_sampler=batches)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_sampler_below_all_wrappers_is_told_its_epoch(depth: int) -> None:
    sampler = Sampler()
    assert innermost_sampler(loader(sampler, depth)) is sampler
    set_epoch(made_up.run(), loader(sampler, depth), 3)
    assert sampler.epoch == 3


GROUPED = "group_by_length"


def orders(strategy: str, processes: int, epochs: tuple[int, ...], **args: Any) -> list[list[Any]]:
    """What transformers' and TRL's samplers give in these epochs, batches joined, on so many processes."""
    lengths = [(7 * number) % 13 + 1 for number in range(24)]
    rows = 8 // processes
    sampler: Any = {
        GROUPED: lambda: LengthGroupedSampler(rows, lengths=lengths),
        "random": lambda: RandomSampler(lengths),
        "prompts": lambda: RepeatSampler(lengths, mini_repeat_count=2, batch_size=2, shuffle=True, seed=1),
        "batch_rebalance": lambda: BatchRebalanceSampler(lengths, 8, processes, 1, drop_last=True),
    }[strategy]()
    batches = sampler if strategy == "batch_rebalance" else SimpleNamespace(sampler=sampler)
    run = made_up.run(args=args, get_total_train_batch_size=lambda args: 8)
    found = []
    for number in epochs:
        set_epoch(run, loader_of(batches), number)
        found.append(list(sampler))
    return found


def loader_of(batches: Any) -> Any:
    """As accelerate wraps them for several processes, and again to skip some."""
    return SimpleNamespace(batch_sampler=SimpleNamespace(batch_sampler=SimpleNamespace(batch_sampler=batches)))


@pytest.mark.parametrize("strategy", [GROUPED, "random", "prompts", "batch_rebalance"])
def test_an_epoch_s_order_depends_on_seed_and_number_alone(strategy: str) -> None:
    torch.manual_seed(0)
    first, second, third = orders(strategy, 1, (0, 1, 2))
    torch.manual_seed(1)
    assert orders(strategy, 1, (2,)) == [third] and first != second != third
    assert orders(strategy, 1, (2,), data_seed=8) != [third]
    assert orders(strategy, 1, (2,), seed=99, data_seed=7) == [third]


def test_length_groups_are_the_same_for_any_number_of_processes() -> None:
    assert orders(GROUPED, 1, (0, 1)) == orders(GROUPED, 4, (0, 1))


def test_a_mixture_is_drawn_by_the_seed_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MixtureSampler", lambda mixture, seed: (mixture, seed))
    args: Any = made_up.run(args={"train_sampling_strategy": "random", "data_seed": 5}).args
    assert mixture_sampler("mixture", args) == ("mixture", 5)  # type: ignore[arg-type,comparison-overlap]  # made up
    assert data_seed(made_up.run().args) == 7, "the run's seed where the data have none"
    args.train_sampling_strategy = "sequential"
    with pytest.raises(ArgumentError, match="order of their own"):
        mixture_sampler("mixture", args)  # type: ignore[arg-type]  # made up


def test_a_loader_without_a_sampler_has_none() -> None:
    assert innermost_sampler(SimpleNamespace()) is None is innermost_sampler(SimpleNamespace(batch_sampler=None))
    set_epoch(made_up.run(), SimpleNamespace(), 3)  # type: ignore[arg-type]


def test_workers_keep_working_and_do_what_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(interrupts, "keep_working", lambda: done.append("keeps working"))
    start_worker(done.append, 3)
    start_worker(None, 4)
    assert done == ["keeps working", 3, "keeps working"]


def test_the_loader_inside_accelerates_is_told_too() -> None:
    inner = SimpleNamespace(num_workers=2, worker_init_fn=None)
    alone: Any = SimpleNamespace(num_workers=0, worker_init_fn=None, base_dataloader=inner)
    prepare_workers(alone)
    assert inner.worker_init_fn is not None and alone.worker_init_fn is None


def test_an_error_of_a_worker_has_no_traceback() -> None:
    text = "Caught DataError in DataLoader worker process 0.\nTraceback ...\nhftune.errors.DataError: a bad row\n"
    with pytest.raises(DataError) as raised, worker_errors():
        raise DataError(text)
    assert raised.value.cause == "a bad row"
    with pytest.raises(DataError, match="Caught a cold"), worker_errors():
        raise DataError("Caught a cold")


def sampler_of(records: Any) -> RepeatSampler:
    """TRL's: two prompts a batch, each answered twice."""
    return RepeatSampler(records, mini_repeat_count=2, batch_size=2, shuffle=True, seed=1)


def test_a_mixture_s_order_in_trl_s_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = OnlineTrainer.__new__(OnlineTrainer)
    trainer.upstream_sampler = sampler_of
    assert trainer.draw_order(range(9)) is None, "without a mixture the order is TRL's"
    trainer.mixture, trainer.args = "a mixture", None
    monkeypatch.setattr(order, "mixture_sampler", lambda mixture, args: [5, 0, 3, 1])
    assert list(trainer.draw_order(range(9))) == [5, 5, 0, 0, 3, 3, 1, 1]
