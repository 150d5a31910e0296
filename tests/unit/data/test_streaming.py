"""A stream gives every record once an epoch, in any world, and goes on in any other with what was not trained."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hftune.constants import IGNORE_INDEX, ORIGIN
from hftune.data.streaming import Progress, StreamingDataset
from hftune.errors import DataError
from tests.unit.data.streams import stream_of


class Rank:
    """A process that trains its stream, and notes what.

    Args:
        ahead: Batches that are fetched and lost when the process stops.
    """

    def __init__(self, stream: StreamingDataset, batch: int, ahead: int = 0) -> None:
        self.stream, self.batch, self.ahead = stream, batch, ahead
        self.examples = iter(stream)
        self.queue: list[list[dict[str, Any]]] = []

    def train(self) -> list[dict[str, Any]]:
        """A micro-batch."""
        while len(self.queue) <= self.ahead:
            self.queue.append(list(islice(self.examples, self.batch)))
        examples = self.queue.pop(0)
        self.stream.progress.record(example[ORIGIN] for example in examples)
        return examples


def world_of(ranks: int, batch: int, state: dict[str, Any] | None = None, ahead: int = 0, **given: Any) -> list[Rank]:
    """The ranks of a world that share a stream, resumed from `state`."""
    streams = [stream_of(**given, rank=rank, world=ranks, group=batch) for rank in range(ranks)]
    for stream in streams:
        if state is not None:
            stream.resume(state)
    return [Rank(stream, batch, ahead) for stream in streams]


def saved(world: list[Rank]) -> dict[str, Any]:
    """A checkpoint's state."""
    return json.loads(json.dumps(world[0].stream.state([rank.stream.progress for rank in world])))


def tokens_of(examples: list[dict[str, Any]]) -> list[int]:
    return [token for example in examples for token in example["input_ids"].tolist()]


LEGS = st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(0, 2), st.integers(0, 5))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=st.integers(1, 40),
    per_chunk=st.integers(1, 4),
    chunks=st.integers(1, 3),
    block_size=st.sampled_from([None, 3, 6]),
    legs=st.lists(LEGS, min_size=1, max_size=4),
)
def test_every_record_once_an_epoch_in_any_world_and_after_any_stop(
    count: int, per_chunk: int, chunks: int, block_size: int | None, legs: list
) -> None:
    """Nothing comes more often than there are epochs begun, and what all ranks have left behind came as often."""
    given = {"count": count, "per_chunk": per_chunk, "chunks": chunks, "block_size": block_size}
    state: dict[str, Any] | None = None
    seen: Counter[int] = Counter()
    furthest = 0
    for ranks, batch, ahead, steps in [*legs, (1, 1, 0, 0)]:
        world = world_of(ranks, batch, state, ahead, **given)
        for _ in range(steps):
            seen.update(token for rank in world for token in tokens_of(rank.train()))
        state = saved(world)
        ends = [rank.stream.progress.end for rank in world]
        furthest = max(furthest, *(end.position + (end.begun > 0) for end in ends), 0)
    # One process goes on alone, to the end of the last epoch that any rank had begun.
    (alone,) = world
    epochs = -(-furthest // count)
    while sum(seen.values()) < 4 * count * epochs:
        seen.update(tokens_of(alone.train()))
    extra = sum(seen.values()) - 4 * count * epochs
    assert sum((seen - Counter(dict.fromkeys(range(4 * count), epochs))).values()) == extra
    assert extra < (block_size or 4)


@pytest.mark.parametrize(("ranks", "batch"), [(1, 1), (2, 1), (2, 5), (4, 2), (16, 1)])
def test_an_epoch_has_every_record_once_whatever_the_world(ranks: int, batch: int) -> None:
    """240 records: the steps of each epoch hold all of them, and steps of one size hold the same in any world."""
    world = world_of(ranks, batch, count=240, per_chunk=25)
    for _ in range(2):
        steps = [tokens_of([one for rank in world for one in rank.train()]) for _ in range(240 // (ranks * batch))]
        assert sorted(token for step in steps for token in step) == [*range(960)]
    (alone,) = world_of(1, 1, count=240, per_chunk=25)
    once = [tokens_of(alone.train()) for _ in range(480)][240:]
    assert [token for step in steps for token in step] == [token for step in once for token in step]


@pytest.mark.parametrize("block_size", [None, 7])
@pytest.mark.parametrize("stop", [1, 4, 9, 30])
def test_resuming_in_the_same_world_changes_nothing(block_size: int | None, stop: int) -> None:
    """Also where records give no example, so that ranks are not at the same place."""
    given = {"count": 30, "per_chunk": 3, "block_size": block_size, "empty": frozenset({1, 7, 8, 20})}
    straight = world_of(3, 2, **given)
    expected = [[tokens_of(rank.train()) for rank in straight] for _ in range(40)]
    first = world_of(3, 2, ahead=2, **given)
    found = [[tokens_of(rank.train()) for rank in first] for _ in range(stop)]
    second = world_of(3, 2, saved(first), **given)
    found += [[tokens_of(rank.train()) for rank in second] for _ in range(40 - stop)]
    assert found == expected
    assert saved(second)["totals"] == saved(straight)["totals"]


def test_blocks_by_hand() -> None:
    """Records [0 1 2 3] [4 5 6 7] [8 9 10 11] in the order of the files, in blocks of 6, over the end of the epoch."""
    no = IGNORE_INDEX
    blocks = [
        {name: column.tolist() for name, column in block.items() if name != ORIGIN}
        for block in islice(stream_of(3, block_size=6, seed=None), 3)
    ]
    assert blocks == [
        {"input_ids": [0, 1, 2, 3, 4, 5], "labels": [no, 1, 2, 3, no, 5],
         "position_ids": [0, 1, 2, 3, 0, 1], "seq_lengths": [4, 2]},
        # what is left of record 1 begins anew: its first label has no token before it
        {"input_ids": [6, 7, 8, 9, 10, 11], "labels": [no, 7, no, 9, 10, 11],
         "position_ids": [0, 1, 0, 1, 2, 3], "seq_lengths": [2, 4]},
        {"input_ids": [0, 1, 2, 3, 4, 5], "labels": [no, 1, 2, 3, no, 5],
         "position_ids": [0, 1, 2, 3, 0, 1], "seq_lengths": [4, 2]},
    ]  # fmt: skip


def examples_of(stream: StreamingDataset, number: int) -> list[list[int]]:
    return [example["input_ids"].tolist() for example in islice(stream, number)]


def test_examples_are_mixed_within_a_window_and_differ_by_epoch() -> None:
    """40 records in windows of 20."""
    order = [ids[0] // 4 for ids in examples_of(stream_of(40, per_chunk=10), 80)]
    first, second, again = order[:20], order[20:40], order[40:60]
    assert sorted(first) == sorted(again) == list(range(20)) and sorted(second) == list(range(20, 40))
    assert first != sorted(first) and first != again
    plain = [ids[0] // 4 for ids in examples_of(stream_of(40, per_chunk=10, seed=None), 40)]
    assert plain == list(range(40))


def test_bad_records_end_the_run_or_are_counted() -> None:
    bad, empty = frozenset({1, 4}), frozenset({2})
    with pytest.raises(DataError, match="bad record") as error:
        examples_of(stream_of(8, bad=bad), 8)
    assert error.value.place == "numbers.jsonl:2"
    stream = stream_of(8, bad=bad, empty=empty, drop_bad_records=True)
    examples = list(islice(stream, 5))
    assert sorted(example["input_ids"][0].item() // 4 for example in examples) == [0, 3, 5, 6, 7]
    stream.progress.record(example[ORIGIN] for example in examples)
    # What comes after the last of an epoch is counted with the first of the next one.
    dropped = stream.totals([stream.progress])["dropped"]
    assert dropped <= 3 and stream.totals([stream.progress])["tokens"] == 5 * 3
    stream.progress.record([next(iter(stream))[ORIGIN]])
    assert stream.totals([stream.progress])["dropped"] >= 3


def test_nothing_to_train_is_an_error_not_a_wait() -> None:
    with pytest.raises(DataError, match="no data"):
        examples_of(stream_of(0), 1)
    with pytest.raises(DataError, match=r"no record of the data gives an example \(8 rows were dropped\)"):
        examples_of(stream_of(8, empty=frozenset(range(8))), 1)


def test_windows_without_an_example_are_passed_over() -> None:
    empty = frozenset({0, 1, 2, 3})
    stream = stream_of(8, empty=empty)
    examples = list(islice(stream, 4))
    assert {example["input_ids"][0].item() // 4 for example in examples} == {4, 5, 6, 7}
    stream.progress.record(example[ORIGIN] for example in examples)
    assert stream.totals([stream.progress])["dropped"] == 4


def test_an_epoch_may_end_without_an_example() -> None:
    """As long as any of its windows gave one."""
    stream = stream_of(12, empty=frozenset(range(4, 12)), seed=None)
    assert [example["input_ids"][0].item() // 4 for example in islice(stream, 10)] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_changed_data_are_refused() -> None:
    state = stream_of(8).state([Progress()])
    stream_of(8).resume(state)
    for other in (stream_of(8, block_size=4), stream_of(8, seed=2), stream_of(8, chunks=1)):
        with pytest.raises(DataError, match="have changed since the checkpoint"):
            other.resume(state)
    with pytest.raises(DataError, match="have changed"):
        stream_of(8).resume({"kind": "blocks"})


@pytest.mark.parametrize("block_size", [None, 7])
def test_workers_change_nothing(block_size: int | None) -> None:
    """Three real ones, whose turns divide neither the records nor the steps."""
    alone, many = stream_of(50, block_size=block_size), stream_of(50, block_size=block_size)
    many.loading = {"num_workers": 3}
    expected, found = (list(islice(stream, 120)) for stream in (alone, many))
    assert tokens_of(found) == tokens_of(expected)
    assert [example[ORIGIN] for example in found] == [example[ORIGIN] for example in expected]
    assert all(example["input_ids"].dtype == torch.int32 for example in found)


def test_a_record_may_give_several_examples() -> None:
    """Record n gives n % 3 of them; a stop in the middle of one loses nothing and repeats nothing."""

    def several(row: Any) -> list[dict[str, np.ndarray]]:
        number = row.value["number"]
        parts = np.arange(4 * number, 4 * number + 4, dtype=np.int32).reshape(2, 2)[: number % 3]
        return [{"input_ids": ids, "labels": ids.copy()} for ids in parts]

    def stream() -> StreamingDataset:
        made = stream_of(12, seed=None)
        made.encode = several
        return made

    expected = [tokens_of([one]) for one in islice(stream(), 24)]
    assert expected[:4] == [[4, 5], [8, 9], [10, 11], [16, 17]] and expected[12:] == expected[:12]
    first = stream()
    begun = list(islice(first, 2))
    first.progress.record(one[ORIGIN] for one in begun)
    second = stream()
    second.resume(json.loads(json.dumps(first.state([first.progress]))))
    assert [tokens_of([one]) for one in [*begun, *islice(second, 22)]] == expected


def test_another_seed_is_another_order() -> None:
    """Also of seeds of which only the lower 32 bits are used: -1 is the largest of them."""
    orders = {seed: examples_of(stream_of(40, per_chunk=10, seed=seed), 40) for seed in (0, 1, 2, -1, 2**32 - 1)}
    assert orders[-1] == orders[2**32 - 1]
    assert len({str(order) for order in orders.values()}) == 4
