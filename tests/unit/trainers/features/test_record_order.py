"""The order of records, and what samplers are told of their epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler
from trl.trainer.utils import RepeatSampler

from hftune.errors import ArgumentError
from hftune.trainers.features import record_order
from hftune.trainers.features.feature import Epoch
from hftune.trainers.features.record_order import RecordOrder, data_seed, innermost_sampler
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
    RecordOrder().before_epoch(made_up.run(), Epoch(loader(sampler, depth), number=3, done=1))
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
        RecordOrder().before_epoch(run, Epoch(loader_of(batches), number, done=0))
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


def test_without_a_mixture_the_trainer_draws() -> None:
    assert RecordOrder().train_sampler(made_up.run(), [1, 2]) is None
    assert RecordOrder().count_examples(made_up.run(), loader(Sampler(), 1)) is None


def test_a_mixture_is_drawn_by_the_seed_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_order, "MixtureSampler", lambda mixture, seed: (mixture, seed))
    feature, run = RecordOrder(), made_up.run(args={"train_sampling_strategy": "random", "data_seed": 5})
    feature.mixture = "mixture"  # type: ignore[assignment]  # made up
    assert feature.train_sampler(run, []) == ("mixture", 5)
    assert data_seed(made_up.run().args) == 7, "the run's seed where the data have none"
    run.args.train_sampling_strategy = "sequential"
    with pytest.raises(ArgumentError, match="order of their own"):
        feature.train_sampler(run, [])


def test_a_loader_without_a_sampler_has_none() -> None:
    assert innermost_sampler(SimpleNamespace()) is None is innermost_sampler(SimpleNamespace(batch_sampler=None))
    RecordOrder().before_epoch(made_up.run(), Epoch(SimpleNamespace(), number=3, done=1))  # type: ignore[arg-type]
