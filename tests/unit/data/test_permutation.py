"""Random orders are those of any other version of numpy, and every key has its own."""

from __future__ import annotations

import pytest

from hftune.data.permutation import permutation


def test_permutations_are_fixed_for_good() -> None:
    """Literal values: if these change, every run that goes on from a checkpoint repeats and loses documents."""
    assert permutation(8, 42, 7).tolist() == [2, 4, 0, 3, 7, 1, 6, 5]
    assert sorted(permutation(1000, 1).tolist()) == list(range(1000))


@pytest.mark.parametrize("other", [(1,), (1, 0, 0), (0, 1), (1, 2)])
def test_keys_of_other_lengths_are_other_keys(other: tuple[int, ...]) -> None:
    assert permutation(100, 1, 0).tolist() != permutation(100, *other).tolist()
