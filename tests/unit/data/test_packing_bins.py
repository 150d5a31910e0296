"""Which documents share a row, against slow and obvious versions of the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hftune.data.packing import Bins, best_fit_decreasing, cut_stream, split_overlong, whole_documents

CAPACITY = 12
FITTING = st.lists(st.integers(1, CAPACITY), max_size=60)
ANY = st.lists(st.integers(0, 3 * CAPACITY), max_size=40)


def as_lists(bins: Bins) -> list[list[int]]:
    return [part.tolist() for part in np.split(bins.segments, bins.offsets[1:-1])] if len(bins.offsets) > 1 else []


def slow_best_fit(lengths: list[int], capacity: int) -> list[int]:
    """How full the bins are, placing one at a time."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        room = min(fitting) if fitting else capacity
        if fitting:
            rooms.remove(room)
        rooms.append(room - length)
    return sorted(capacity - room for room in rooms)


@given(FITTING)
def test_it_is_best_fit_decreasing(lengths: list[int]) -> None:
    array = np.array(lengths, dtype=np.int64)
    fill = [int(array[bin_].sum()) for bin_ in as_lists(best_fit_decreasing(array, CAPACITY))]
    assert sorted(fill) == slow_best_fit(lengths, CAPACITY)


@given(FITTING)
def test_each_piece_is_in_one_bin_and_bins_follow_the_data(lengths: list[int]) -> None:
    bins = as_lists(best_fit_decreasing(np.array(lengths, dtype=np.int64), CAPACITY))
    assert sorted(piece for bin_ in bins for piece in bin_) == list(range(len(lengths)))
    assert all(bin_ == sorted(bin_) for bin_ in bins)
    assert [bin_[0] for bin_ in bins] == sorted(bin_[0] for bin_ in bins)


def test_best_fit_by_hand() -> None:
    # 8 opens a bin (room 2), 7 another (3), 3 fills the second, 2 the first, the last 2 opens a third.
    bins = best_fit_decreasing(np.array([2, 7, 2, 8, 3]), 10)
    assert as_lists(bins) == [[0, 3], [1, 4], [2]]


def test_ties_stay_in_their_order() -> None:
    """Each 5 meets the next 4, however many there are."""
    bins = best_fit_decreasing(np.array([5, 4] * 50), 9)
    assert as_lists(bins) == [[2 * number, 2 * number + 1] for number in range(50)]


def test_a_length_above_the_capacity_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="from 1 to capacity"):
        best_fit_decreasing(np.array([11]), 10)


@given(ANY)
def test_pieces_cover_documents_once(lengths: list[int]) -> None:
    array = np.array(lengths, dtype=np.int64)
    for segments in (split_overlong(array, CAPACITY), cut_stream(array, CAPACITY)[0]):
        tokens = [
            (document, start + offset)
            for document, start, length in zip(segments.document, segments.start, segments.length, strict=True)
            for offset in range(length)
        ]
        assert tokens == [(document, token) for document, length in enumerate(lengths) for token in range(length)]


@given(ANY)
def test_only_overlong_documents_are_split(lengths: list[int]) -> None:
    array = np.array(lengths, dtype=np.int64)
    segments = split_overlong(array, CAPACITY)
    counts = np.bincount(segments.document, minlength=len(lengths))
    assert counts.tolist() == [-(-length // CAPACITY) for length in lengths]
    assert not len(segments.length) or segments.length.max() <= CAPACITY
    # All pieces of a document but its last are full.
    full = segments.start + segments.length < array[segments.document]
    assert (segments.length[full] == CAPACITY).all()


@given(ANY)
def test_a_stream_leaves_room_in_its_last_bin_only(lengths: list[int]) -> None:
    segments, bins = cut_stream(np.array(lengths, dtype=np.int64), CAPACITY)
    fill = [int(segments.length[bin_].sum()) for bin_ in as_lists(bins)]
    assert sum(fill) == sum(lengths)
    assert all(tokens == CAPACITY for tokens in fill[:-1])
    assert not fill or 1 <= fill[-1] <= CAPACITY


def test_a_stream_by_hand() -> None:
    segments, bins = cut_stream(np.array([3, 0, 6, 1]), 4)
    # |aaa c|cccc|c d|: document c is cut twice.
    assert segments.document.tolist() == [0, 2, 2, 2, 3]
    assert segments.start.tolist() == [0, 0, 1, 5, 0]
    assert segments.length.tolist() == [3, 1, 4, 1, 1]
    assert as_lists(bins) == [[0, 1], [2], [3, 4]]


def test_empty_documents_are_no_pieces() -> None:
    segments = whole_documents(np.array([2, 0, 1]))
    assert (segments.document.tolist(), segments.length.tolist()) == ([0, 2], [2, 1])
