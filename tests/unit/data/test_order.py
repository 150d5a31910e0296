"""The order of a source: every token once an epoch, found from any position alone, mixed as far as the buffer says."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.documents import Segment, SourceOrder
from tests.unit.data.corpora import InMemory

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any)


def order_of(lengths: list[int], shards: int = 4, buffer: int = 3, seed: int = 0, name: str = "a") -> SourceOrder:
    return SourceOrder(InMemory(name, lengths), seed=seed, shards=shards, buffer=buffer)


def tokens_of(order: SourceOrder, position: int, count: int) -> list[int]:
    return [int(token) for segment in order.segments(position, count) for token in order.documents.read(*segment)]


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, shards=st.integers(1, 60), buffer=st.integers(0, 60), seed=st.integers(0, 2**40))
def test_an_epoch_holds_every_token_once_and_documents_whole(
    lengths: list[int], shards: int, buffer: int, seed: int
) -> None:
    order = order_of(lengths, shards, buffer, seed)
    for epoch in range(3):
        segments = order.segments(epoch * order.tokens, order.tokens)
        assert sorted(segments) == [Segment(number, 0, size) for number, size in enumerate(lengths) if size]


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, shards=st.integers(1, 60), buffer=st.integers(0, 60), data=st.data())
def test_a_stretch_is_the_same_wherever_one_begins(
    lengths: list[int], shards: int, buffer: int, data: st.DataObject
) -> None:
    stream = tokens_of(order_of(lengths, shards, buffer), 0, 3 * sum(lengths))
    order = order_of(lengths, shards, buffer)
    for _ in range(5):  # any order of asking: windows are dropped and made again
        start = data.draw(st.integers(0, len(stream) - 1))
        count = data.draw(st.integers(1, len(stream) - start))
        assert tokens_of(order, start, count) == stream[start : start + count]


def test_epochs_and_seeds_and_names_have_orders_of_their_own() -> None:
    lengths = [1] * 50
    kinds = {
        "epoch 0": tokens_of(order_of(lengths), 0, 50),
        "epoch 1": tokens_of(order_of(lengths), 50, 50),
        "seed": tokens_of(order_of(lengths, seed=1), 0, 50),
        "name": tokens_of(order_of(lengths, name="b"), 0, 50),
        "files": list(range(50)),
    }
    assert len({tuple(tokens) for tokens in kinds.values()}) == len(kinds)


def test_no_buffer_keeps_the_order_of_the_files() -> None:
    assert tokens_of(order_of([3, 0, 4, 5], buffer=0), 0, 24) == [*range(12), *range(12)]


def test_a_window_mixes_documents_from_all_over() -> None:
    """1,000 documents in 100 shards and a buffer of 200: 20 shards are mixed at a time."""
    order = order_of([1] * 1000, shards=100, buffer=200)
    window = tokens_of(order, 0, 200)
    shards = [token // 10 for token in window]
    assert len(set(shards)) == 20
    assert max(shards) - min(shards) > 50
    # Within the window no shard stays together: neighbours come from one shard as seldom as in a full shuffle
    # (9 of 199 pairs expected; 25 would be five standard deviations off).
    assert sum(one == two for one, two in itertools.pairwise(shards)) < 25


def test_a_buffer_as_large_as_the_source_is_a_full_shuffle() -> None:
    order = order_of([1] * 1000, shards=7, buffer=10**9)
    drawn = np.array(tokens_of(order, 0, 1000))
    assert abs(np.corrcoef(drawn, np.arange(1000))[0, 1]) < 0.15


def test_only_a_few_windows_are_in_memory() -> None:
    order = order_of([1] * 1000, shards=100, buffer=10)
    tokens_of(order, 0, 5000)
    assert len(order._windows) <= 3 and len(order._epochs) <= 3
