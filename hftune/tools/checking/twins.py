"""Records that are equal, nearly equal, or judged both ways, found among the numbers of the store.

Nearly equal are records whose signatures agree in a share of numbers that estimates a Jaccard similarity of at least
`SIMILAR`, of what they do not share with many others: an instruction that stands before each review of a data set makes
no two reviews alike. A number that many records have in one place of the signature is that of a shared shingle; where
the smaller one of two records' numbers is such, the place says nothing about the rest of their texts, and is left out.

Candidates agree in what a band has of other numbers. Within a group that shares it each is compared with the first and
with the few before it: the time grows with the records, also where all of them are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hftune.tools.checking.shingles import BANDS, ROWS
from hftune.tools.checking.store import Store

SIMILAR = 0.8
"""One word in fifty changed leaves 0.89 of three-word shingles, give or take 0.04 for the signature."""

SHARED, SHARED_BY = 0.05, 20
"""A shingle that more than this share of the records has, and at least so many, is no sign that two are alike."""

_SAMPLE = 1 << 15
# Of places that are left: fewer say too little.
_FEWEST_PLACES = 8
# Of numbers of a band that only few records have: one alone is shared by chance.
_FEWEST_TELLING = 2

# Fewer shingles are alike by chance.
_FEWEST = 4
_BEFORE = 4
_AT_ONCE = 1 << 15
NONE = np.iinfo(np.uint32).max
"""In place of a twin."""


@dataclass
class Twins:
    """Of each record an earlier one, or `NONE`.

    Attributes:
        equal: That it equals.
        near: That it is nearly equal to, if it equals none.
        similarity: To that one.
    """

    equal: np.ndarray
    near: np.ndarray
    similarity: np.ndarray


def find_twins(store: Store) -> Twins:
    """The earliest record that each record equals, or is found to be nearly equal to."""
    about = store.about()
    exact = np.asarray(about["exact"])
    # 0 stands for records that cannot be used: they are like no other.
    equal = np.where(exact == 0, NONE, _first_equal(exact)).astype(np.uint32)
    near = np.full(store.count, NONE, np.uint32)
    similarity = np.zeros(store.count, np.float32)
    compared = np.flatnonzero((about["shingles"] >= _FEWEST) & (equal == NONE))
    shared = [_shared(store.band(band)[compared]) for band in range(BANDS)]
    for band in range(BANDS):
        numbers = np.asarray(store.band(band))[compared]
        common = _is_shared(numbers, shared[band])
        telling = (~common).sum(axis=1) >= _FEWEST_TELLING
        numbers[common] = 0
        for later, earlier in _candidates(numbers[telling], compared[telling], near):
            agreed = _agreement(store, shared, later, earlier)
            good = agreed >= SIMILAR
            near[later[good]], similarity[later[good]] = earlier[good], agreed[good]
    return Twins(equal, near, similarity)


def _first_equal(values: np.ndarray) -> np.ndarray:
    """Of each place the first one with the same value, `NONE` where it is the first itself."""
    found = np.full(len(values), NONE, np.uint32)
    if len(values):
        # Stable: of equal values the first stands first.
        order = np.argsort(values, kind="stable")
        begins = np.append(True, values[order][1:] != values[order][:-1])
        first = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
        found[order[~begins]] = first[~begins]
    return found


def _candidates(numbers: np.ndarray, records: np.ndarray, near: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(later, earlier) records that share a band, for each of several distances; `near` is looked at in between."""
    hashed = _hashed(numbers)
    order = np.argsort(hashed, kind="stable")
    same = np.append(False, hashed[order][1:] == hashed[order][:-1])
    places = np.arange(len(order))
    first = np.maximum.accumulate(np.where(same, 0, places))
    # The first of all: where many are alike, it is the one that stays.
    for earlier in (first, *(places - back for back in range(1, _BEFORE + 1))):
        chosen = np.flatnonzero((earlier >= first) & (earlier < places))
        later_records, earlier_records = records[order[chosen]], records[order[np.maximum(earlier, 0)[chosen]]]
        # An earlier twin than the one that is known may be the one that stays.
        open_ones = earlier_records < near[later_records]
        later_records, earlier_records = later_records[open_ones], earlier_records[open_ones]
        for start in range(0, len(later_records), _AT_ONCE):
            yield later_records[start : start + _AT_ONCE], earlier_records[start : start + _AT_ONCE]


def _hashed(numbers: np.ndarray) -> np.ndarray:
    """64 bits of each row; rows that differ and have the same are told apart by their signatures."""
    total = np.zeros(len(numbers), np.uint64)
    for column in range(ROWS):
        total = (total ^ numbers[:, column]) * np.uint64(0x9E3779B97F4A7C15)
        total ^= total >> np.uint64(29)
    return total


def _shared(numbers: np.ndarray) -> list[np.ndarray]:
    """Of each column of a band the numbers that many records have, estimated from a sample."""
    sample = numbers[:: max(1, len(numbers) // _SAMPLE)]
    found = [np.unique(column, return_counts=True) for column in sample.T]
    return [values[counts > max(SHARED_BY, SHARED * len(sample))] for values, counts in found]


def _is_shared(numbers: np.ndarray, shared: list[np.ndarray]) -> np.ndarray:
    """(n, ROWS) bool: whether many records have a number."""
    return np.stack([np.isin(column, values) for column, values in zip(numbers.T, shared, strict=True)], axis=1)


def _agreement(store: Store, shared: list[list[np.ndarray]], left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The share of places in which the signatures of pairs of records agree, of those that are no shared shingle's."""
    agreed, places = np.zeros((2, len(left)), np.float32)
    for band in range(BANDS):
        one, other = store.band(band)[left], store.band(band)[right]
        # The smaller number is that of a shingle of both texts together, drawn at random.
        own = ~_is_shared(np.minimum(one, other), shared[band])
        agreed += ((one == other) & own).sum(axis=1)
        places += own.sum(axis=1)
    return np.where(places >= _FEWEST_PLACES, agreed / np.maximum(places, 1), 0)


def contradictions(store: Store) -> Iterator[tuple[int, int]]:
    """Records whose judgement another one turns around, each with the first that does."""
    about = store.about()
    judged, verdicts = np.asarray(about["judged"]), np.asarray(about["verdict"])
    places = np.flatnonzero(judged)
    order = places[np.argsort(judged[places], kind="stable")]
    if not len(order):
        return
    starts = np.flatnonzero(np.append(True, judged[order][1:] != judged[order][:-1]))
    given = verdicts[order]
    both = np.minimum.reduceat(given, starts) != np.maximum.reduceat(given, starts)
    ends = np.append(starts[1:], len(order))
    for start, end in zip(starts[both], ends[both], strict=True):
        firsts = {verdict: int(order[start:end][given[start:end] == verdict][0]) for verdict in (1, -1)}
        yield from ((int(one), firsts[-int(verdicts[one])]) for one in order[start:end])
