"""Who gets which heads and which tokens."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hftune.distributed.sequence_parallel import Heads, SequenceGroup, shares


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_shares_are_even_and_whole(total: int, size: int) -> None:
    found = shares(total, size)
    assert sum(found) == total and len(found) == size
    assert max(found) - min(found) <= 1 and list(found) == sorted(found, reverse=True)
    slices = [SequenceGroup(size, rank).slice_of(total) for rank in range(size)]
    assert slices[0].start == 0 and slices[-1].stop == total
    assert all(here.stop == there.start for here, there in itertools.pairwise(slices))


@given(st.integers(1, 16), st.integers(1, 8), st.data())
def test_every_query_finds_its_key(keys: int, group: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, keys * group))
    heads = Heads(keys * group, keys, size)
    assert len(heads.keys_sent) == sum(heads.key_shares)
    seen = []
    for rank in range(size):
        first = sum(heads.key_shares[:rank])
        mine = heads.keys_sent[first : first + heads.key_shares[rank]]
        queries = list(heads.query_range(rank))
        places = heads.key_of_query(rank)
        if places is None:  # as `enable_gqa` of SDPA does it: each key for so many queries, one after the other
            each, rest = divmod(len(queries), len(mine))
            assert not rest
            places = [number // each for number in range(len(queries))]
        assert [mine[place] for place in places] == [query // group for query in queries]
        seen += queries
    assert seen == list(range(keys * group))


@pytest.mark.parametrize(
    ("queries", "keys", "size", "sent", "places"),
    [
        (8, 8, 2, [0, 1, 2, 3, 4, 5, 6, 7], None),
        (8, 2, 2, [0, 1], None),
        # Two processes, one head of keys: both get it.
        (4, 1, 2, [0, 0], None),
        # 8 queries on 2 keys, over 4 processes: each needs one key, as DeepSpeed replicates them.
        (8, 2, 4, [0, 0, 1, 1], None),
        # SmolLM2-135M: 9 queries on 3 keys. The first process has queries 0-4, which need keys 0, 0, 0, 1, 1.
        (9, 3, 2, [0, 1, 1, 2], [0, 0, 0, 1, 1]),
    ],
)
def test_heads_by_hand(queries: int, keys: int, size: int, sent: list[int], places: list[int] | None) -> None:
    heads = Heads(queries, keys, size)
    assert heads.keys_sent == sent
    assert heads.key_of_query(0) == places
