"""A row of two prompts, written out: prompt of 2 with answers of 1 and 3 tokens, prompt of 1 with one of 2."""

from __future__ import annotations

import pytest
import torch

from hftune.errors import ArgumentError
from hftune.models.attention.shared_prompts import SharedPrompts

CPU = torch.device("cpu")


@pytest.fixture
def row() -> SharedPrompts:
    # p p a b b b | q c c
    return SharedPrompts((2, 1), ((1, 3), (2,)))


def test_how_it_is_made_up(row: SharedPrompts) -> None:
    assert row.parts == [2, 1, 3, 1, 2]
    assert row.runs == [3, 3, 3], "p p a, b b b, q c c"
    assert row.key_runs == [3, 5, 3], "p p a, p p b b b, q c c"
    assert row.counts.tolist() == [2, 2, 1, 1, 1, 1, 1, 1, 1] and row.counts.dtype == torch.float32
    row.check([3, 3, 3])
    row.check((3, 3, 3))
    for wrong in ([3, 6], [3, 3, 3, 1], [3, 5, 3]):
        with pytest.raises(ArgumentError, match="does not see the prompts"):
            row.check(wrong)
    assert repr(row) == "SharedPrompts(prompts=(2, 1), answers=((1, 3), (2,)))"


def test_keys_begin_with_those_of_the_prompt(row: SharedPrompts) -> None:
    states = torch.arange(9)[None]
    found = row.with_prompts(states, 1)
    assert [run[0].tolist() for run in found] == [[0, 1, 2], [0, 1, 3, 4, 5], [6, 7, 8]]
    assert [run[:, 0].tolist() for run in row.with_prompts(states.T, 0)] == [run[0].tolist() for run in found]
    # The prompt has the gradients of all its answers.
    trained = torch.zeros(1, 9, requires_grad=True)
    sum(run.sum() for run in row.with_prompts(trained, 1)).backward()
    assert trained.grad.tolist() == [[2, 2, 1, 1, 1, 1, 1, 1, 1]]


def test_borders_are_made_once(row: SharedPrompts) -> None:
    borders = row.borders([3, 5, 3], CPU)
    assert borders.tolist() == [0, 3, 8, 11] and borders.dtype == torch.int32
    assert row.borders((3, 5, 3), CPU) is borders and row.borders([3, 3, 3], CPU).tolist() == [0, 3, 6, 9]


def test_what_sees_what(row: SharedPrompts) -> None:
    # A run with its own prompt is causal; within a window as long as itself, too.
    assert row.seen(3, 3, None, CPU) is None and row.seen(3, 3, 3, CPU) is None and row.seen(3, 3, 4, CPU) is None
    behind = row.seen(3, 5, None, CPU)
    assert behind.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert row.seen(3, 5, 9, CPU).equal(behind)
    assert row.seen(3, 5, 2, CPU).int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert row.seen(3, 3, 2, CPU).int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert row.seen(3, 5, None, CPU) is behind and row.seen(2, 5, None, CPU).shape == (2, 5)
