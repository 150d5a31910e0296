"""Sums that become metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.distributed import ranks
from hftune.trainers.features.sums import MetricSums
from tests.unit.trainers.features import made_up

CPU, ALONE = torch.device("cpu"), made_up.Accelerator()


def test_means_of_all_that_was_added_and_anew() -> None:
    sums = MetricSums(CPU)
    sums.add("margin", torch.tensor([1.0, 5.0]), torch.tensor([1.0, 3.0]))
    sums.add("margin", torch.tensor([9.0]), torch.tensor([0.0]))
    sums.add("right", torch.tensor([True, False]))
    assert sums.totals(ALONE) == {"margin": (16.0, 4.0), "right": (1.0, 2.0)}
    assert sums.means(ALONE) == {"margin": 4.0, "right": 0.5}
    assert sums.means(ALONE) == {} and sums.empty


def test_sums_in_16_bits_go_on_growing() -> None:
    sums = MetricSums(CPU)
    for _ in range(1000):
        sums.add("x", torch.ones(1, dtype=torch.bfloat16))
    assert sums.totals(ALONE)["x"] == (1000.0, 1000.0)


def test_names_differ_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "gathered_objects", lambda names: [names, ["b"]])
    other = torch.tensor([[0.0, 0.0], [3.0, 1.0]])
    accelerator: Any = SimpleNamespace(reduce=lambda value, how: {"sum": value + other}[how])
    sums = MetricSums(CPU)
    sums.add("a", torch.tensor([1.0]))
    assert sums.totals(accelerator) == {"a": (1.0, 1.0), "b": (3.0, 1.0)}


def test_names_that_all_have_are_not_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ranks, "gathered_objects")
    asked: list[Any] = []
    accelerator: Any = SimpleNamespace(reduce=lambda value, how: asked.append((value.shape, value.dtype)) or value)
    assert MetricSums(CPU, ("a", "b")).totals(accelerator) == {"a": (0.0, 0.0), "b": (0.0, 0.0)}
    assert asked == [((2, 2), torch.float64)], "as another rank has that added something"


@pytest.mark.parametrize("main", [True, False])
def test_one_rank_takes_what_all_had(main: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "is_main", lambda: main)
    sums = MetricSums(CPU, ("a",))
    sums.restore({"a": (4.0, 2.0)})
    assert sums.totals(ALONE) == {"a": (4.0, 2.0) if main else (0.0, 0.0)}


def test_batches_that_are_elsewhere_are_added_where_the_sums_are() -> None:
    """Streams give batches on the CPU, which the Trainer's own step moves later."""
    sums = MetricSums(torch.device("meta"))
    sums.add("x", torch.ones(2))
    sums.add("x", torch.ones(2))
    assert sums._sums["x"].device.type == "meta"
