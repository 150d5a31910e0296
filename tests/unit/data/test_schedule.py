"""Shares are kept exactly, in whatever order the blocks of a run are asked for."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.mixture import Schedule, as_shares

SHARES = st.lists(st.integers(1, 10**6), min_size=1, max_size=6)


@pytest.mark.parametrize("weights, shares", [([1, 2], [1, 2]), ([0.1, 0.2, 0.7], [1, 2, 7]), ([3.0, 6.0], [1, 2])])
def test_weights_become_whole_numbers(weights: list[float], shares: list[int]) -> None:
    assert as_shares(weights) == shares


def test_a_schedule_by_hand() -> None:
    """Shares 3 and 1: due at 2/3, 6/3, 10/3, ... and 2, 6, ...; at 2 both, and the earlier source goes first."""
    schedule = Schedule([3, 1])
    assert [schedule.locate(block) for block in range(8)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (0, 2),
        (0, 3),
        (0, 4),
        (1, 1),
        (0, 5),
    ]


@settings(deadline=None, max_examples=50)
@given(shares=SHARES, start=st.integers(0, 10**9))
def test_a_schedule_counts_up_each_source_and_keeps_the_shares(shares: list[int], start: int) -> None:
    schedule = Schedule(shares)
    taken = schedule.before(start)
    assert sum(taken) == start
    for block in range(start, start + 300):
        source, rank = schedule.locate(block)
        assert rank == taken[source]
        taken[source] += 1
    exact = [Fraction((start + 300) * share, sum(shares)) for share in shares]
    assert all(abs(count - share) <= len(shares) / 2 for count, share in zip(taken, exact, strict=True))


def test_every_block_has_one_place_whatever_was_asked_before() -> None:
    schedule, again = Schedule([5, 3, 7, 1]), Schedule([5, 3, 7, 1])
    places = [schedule.locate(block) for block in range(5000)]
    assert len(set(places)) == len(places)
    for block in (4999, 0, 2000, 1):
        assert again.locate(block) == places[block]
