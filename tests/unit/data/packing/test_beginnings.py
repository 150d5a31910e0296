"""Documents that begin alike: each can be put together again, and keeps what predicts its first trained token."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.constants import IGNORE_INDEX
from hftune.data.packing import beginnings, rows
from hftune.data.packing.beginnings import shared_segments
from hftune.data.packing.int_columns import IntColumn
from tests.unit.data.helpers import pack, to_dataset

LEAST = 3
Labelled = list[tuple[list[int], int]]
"""Token ids of documents, and where the first trained token of each is."""


@pytest.fixture(autouse=True)
def short_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "LEAST", LEAST)
    monkeypatch.setattr(rows, "TOKENS_AT_ONCE", 20)


def dataset_of(documents: Labelled) -> Any:
    labels = [[IGNORE_INDEX] * first + ids[first:] for ids, first in documents]
    return to_dataset({"input_ids": [ids for ids, _ in documents], "labels": labels})


def groups_of(documents: Labelled, capacity: int = 100) -> list[list[tuple[int, int, int]]]:
    """(document, tokens of the whole one before it, own tokens) of each group."""
    data = dataset_of(documents)
    found, offsets = shared_segments(IntColumn(data, "input_ids"), IntColumn(data, "labels"), capacity)
    assert found.start.tolist() == found.behind.tolist()
    every = [*zip(found.document.tolist(), found.behind.tolist(), found.length.tolist(), strict=True)]
    return [every[start:end] for start, end in pairwise(offsets)]


def test_the_rows_of_a_conversation_hang_on_the_last_one() -> None:
    first = [1, 2, 3, 4, 90, 91, 92]  # trained behind 1 2 3 4
    second = [1, 2, 3, 4, 5, 6, 7, 8, 80, 81]  # behind eight tokens
    third = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 70]
    # A token that predicts the first trained one stays with the document: 4 of the first, 8 of the second.
    rows = [(first, 4), (second, 8), (third, 11)]
    assert groups_of(rows) == [[(2, 0, 12), (0, 3, 4), (1, 7, 3)]]
    assert groups_of(rows, capacity=19) == [[(2, 0, 12), (0, 3, 4), (1, 7, 3)]]
    assert groups_of(rows, capacity=18) == [[(1, 0, 10), (0, 3, 4)], [(2, 0, 12)]], "what does not fit stands alone"


def test_a_third_that_shares_less_joins_where_that_saves_a_token_more() -> None:
    """5 tokens of the second are saved without the third, 3 and 3 with it."""
    first, second = [1, 2, 3, 4, 5, 6, 90], [1, 2, 3, 4, 5, 6, 7, 80]
    assert groups_of([(first, 6), (second, 7)]) == [[(1, 0, 8), (0, 5, 2)]]
    assert groups_of([(first, 6), (second, 7), ([1, 2, 3, 9, 9, 70], 5)]) == [[(2, 0, 6), (0, 3, 4), (1, 3, 5)]]


def test_what_shares_too_little_stands_alone() -> None:
    assert groups_of([([1, 2, 3, 4, 5], 4), ([1, 2, 9, 4, 5], 4)]) == [[(0, 0, 5)], [(1, 0, 5)]]
    # Four are the same, but the third one is trained already.
    assert groups_of([([1, 2, 3, 4, 5], 3), ([1, 2, 3, 4, 6], 3)]) == [[(0, 0, 5)], [(1, 0, 5)]]
    assert groups_of([([1, 2, 3, 4, 5], 4), ([1, 2, 3, 4, 6], 1)]) == [[(1, 0, 5), (0, 3, 2)]], "the whole one may be"
    # Not next to each other.
    assert [*map(len, groups_of([([1, 2, 3, 4, 5], 4), ([9] * 5, 4), ([1, 2, 3, 4, 5], 4)]))] == [1, 1, 1]
    for shorter in ([1, 2, 3, 4, 5], 4), ([1, 2, 3], 1):
        alone = [[(0, 0, len(shorter[0]))], [(1, 0, 3)]]
        assert groups_of([shorter, ([1, 2, 3], 1)]) == alone, "as short as a beginning"


def test_what_is_not_trained_keeps_its_last_token() -> None:
    """Of four that are the same, three stand before the last one, which nothing but the document's end needs."""
    untrained = [1, 2, 3, 4, 5]
    assert groups_of([(untrained, 5), ([1, 2, 3, 4, 6], 4)]) == [[(1, 0, 5), (0, 3, 2)]]
    assert groups_of([(untrained[:4], 4), ([1, 2, 3, 4, 6], 4)]) == [[(0, 0, 4)], [(1, 0, 5)]]


def test_conversations_do_not_give_up_their_own_rows_for_a_system_prompt() -> None:
    system = [1, 2, 3]
    one = [([*system, 4, 5, 6, 7, 80], 7), ([*system, 4, 5, 6, 7, 8, 9, 90], 9)]
    other = [([*system, 14, 15, 16, 17, 80], 7), ([*system, 14, 15, 16, 17, 18, 19, 90], 9)]
    assert groups_of([*one, *other]) == [[(1, 0, 10), (0, 6, 2)], [(3, 0, 10), (2, 6, 2)]]
    # Single rows share it: 3 tokens each.
    assert groups_of([([*system, place, 50], 4) for place in (20, 30, 40)]) == [[(2, 0, 5), (0, 3, 2), (1, 3, 2)]]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.lists(st.integers(1, 3), min_size=2, max_size=6), st.integers(1, 7)),
        min_size=1,
        max_size=9,
    ),
    st.integers(12, 30),
)
def test_nothing_is_lost(shapes: list[tuple[int, list[int], int]], capacity: int) -> None:
    documents = [([*range(10, 10 + same), *own], min(first, same + len(own) - 1)) for same, own, first in shapes]
    packed, stats = pack(dataset_of(documents), capacity, shared_beginnings=True)
    plain, before = pack(dataset_of(documents), capacity)
    found, whole = [], []
    for row in packed:
        assert len(row["input_ids"]) <= capacity and sum(row["seq_lengths"]) == len(row["input_ids"])
        at = 0
        for length, behind in zip(row["seq_lengths"], row["shared_tokens"], strict=True):
            ids, labels = row["input_ids"][at : at + length], row["labels"][at : at + length]
            assert row["position_ids"][at : at + length] == [*range(behind, behind + length)]
            assert labels[0] == IGNORE_INDEX
            if not behind:
                whole = ids
            assert len(whole) >= behind
            found.append(([*whole[:behind], *ids], [IGNORE_INDEX] * behind + labels))
            at += length
    wanted = [(ids, [IGNORE_INDEX] * first + ids[first:]) for ids, first in documents]
    assert sorted(found) == sorted(wanted)
    assert stats.trained_tokens == before.trained_tokens and stats.tokens + stats.shared_tokens == before.tokens
    assert "shared_tokens" not in plain[0]


def test_the_head_only_chooses_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings.xxhash, "xxh3_64_intdigest", lambda values: 1)
    assert groups_of([([1, 2, 3, 4, 5], 4), ([7, 2, 3, 4, 5], 4)]) == [[(0, 0, 5)], [(1, 0, 5)]]


def test_one_of_many_in_order() -> None:
    ids = np.arange(8)
    assert beginnings._common(ids, ids[:5]) == 5 and beginnings._common(ids, ids + (ids > 2)) == 3


def test_no_documents_are_no_segments_of_whole_numbers() -> None:
    """An empty list alone would become floats, with which nothing can be gathered."""
    data = dataset_of([([], 0)])
    found, offsets = shared_segments(IntColumn(data, "input_ids"), IntColumn(data, "labels"), 10)
    arrays = (found.document, found.start, found.length, found.behind, offsets)
    assert [(array.dtype, len(array)) for array in arrays] == [(np.dtype("int64"), size) for size in (0, 0, 0, 0, 1)]
