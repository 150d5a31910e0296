"""Shares are kept exactly, in whatever order the blocks of a run are asked for."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.corpus.schedule import Schedule, as_shares

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


def test_a_schedule_crosses_its_stretches() -> None:
    """Shares that do not divide a stretch: every block has one place, over ten stretches, asked in any order."""
    schedule, again = Schedule([5, 3, 7, 1]), Schedule([5, 3, 7, 1])
    places = [schedule.locate(block) for block in range(10 * Schedule.STRETCH)]
    assert len(set(places)) == len(places)
    for block in (39_999, 0, 20_000, 4096, 4095, 8192, 1):
        assert again.locate(block) == places[block]


@settings(deadline=None)
@given(shares=st.lists(st.integers(1, 9), min_size=2, max_size=5), stretch=st.integers(1, 7))
def test_how_many_blocks_are_sorted_at_once_changes_nothing(shares: list[int], stretch: int) -> None:
    """With stretches of a few blocks a stretch often begins or ends a block beside its multiple."""
    short, usual = Schedule(shares), Schedule(shares)
    short.STRETCH = stretch
    for block in range(60):
        assert (short.locate(block), short.before(block)) == (usual.locate(block), usual.before(block))
