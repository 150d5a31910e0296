"""A stream gives every record once an epoch, in any world, and goes on in any other with what was not trained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hftune.constants import IGNORE_INDEX
from hftune.data.corpus.progress import Progress, from_dict, merged
from hftune.data.corpus.streaming import ORIGIN, StreamingDataset, join_examples
from hftune.errors import DataError
from tests.unit.data.corpus.streams import stream_of

Seen = Counter[tuple[int, int]]
"""Epoch and token."""


def worker_of(stream: StreamingDataset, worker: int, workers: int) -> Iterator[dict[str, Any]]:
    """The stream as a DataLoader worker gives it; 0 workers: as the process itself does."""
    examples = iter(stream)
    info = SimpleNamespace(id=worker, num_workers=workers) if workers else None
    while True:
        with mock.patch("hftune.data.corpus.streaming.get_worker_info", lambda: info):
            yield next(examples)


class Rank:
    """A process with its workers: batches come from them in turn, and what is trained is noted.

    Args:
        ahead: Batches that each worker has fetched and that are lost when the process stops.
    """

    def __init__(self, stream: StreamingDataset, workers: int, batch: int, ahead: int) -> None:
        self.stream, self.batch = stream, batch
        # A worker has a copy of the data set, as it was when the worker began.
        self.workers = [worker_of(_copy(stream), worker, workers) for worker in range(max(1, workers))]
        self.turn = 0
        self.queues: list[list[list[dict[str, Any]]]] = [[] for _ in self.workers]
        self.ahead = ahead

    def train(self) -> Seen:
        """A micro-batch."""
        queue, worker = self.queues[self.turn], self.workers[self.turn]
        while len(queue) <= self.ahead:
            queue.append(list(islice(worker, self.batch)))
        self.turn = (self.turn + 1) % len(self.workers)
        examples = queue.pop(0)
        self.stream.progress.record(example[ORIGIN] for example in examples)
        return Counter(
            (example[ORIGIN].epoch, token) for example in examples for token in example["input_ids"].tolist()
        )


def _copy(stream: StreamingDataset) -> StreamingDataset:
    copied = StreamingDataset(stream.chunks, stream.encode, stream.settings, rank=stream.rank, world=stream.world)
    copied.progress = from_dict(stream.progress.to_dict())
    return copied


LEGS = st.tuples(st.integers(1, 8), st.integers(0, 4), st.integers(1, 3), st.integers(0, 2), st.integers(0, 5))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=st.integers(1, 40),
    per_chunk=st.integers(1, 4),
    chunks=st.integers(1, 3),
    block_size=st.sampled_from([None, 4, 6]),
    legs=st.lists(LEGS, min_size=1, max_size=4),
)
def test_every_record_once_an_epoch_in_any_world_and_after_any_stop(
    count: int, per_chunk: int, chunks: int, block_size: int | None, legs: list
) -> None:
    state: dict[str, Any] | None = None
    seen: Seen = Counter()
    for number, (ranks, workers, batch, ahead, steps) in enumerate(legs):
        streams = [
            stream_of(count, per_chunk, chunks=chunks, block_size=block_size, rank=rank, world=ranks)
            for rank in range(ranks)
        ]
        for stream in streams:
            if state is not None:
                stream.resume(state)
        world = [Rank(stream, workers, batch, ahead) for stream in streams]
        last = number == len(legs) - 1
        while steps > 0 or (last and not _two_epochs(seen, count)):
            seen += sum((rank.train() for rank in world), Counter())
            steps -= 1
        assert not seen or max(seen.values()) == 1
        together = merged([stream.progress for stream in streams])
        state = json.loads(json.dumps(streams[0].state(together)))
    assert {token for epoch, token in seen if epoch == 1} == set(range(4 * count))


def _two_epochs(seen: Seen, count: int) -> bool:
    """Whether every token has come in epochs 0 and 1."""
    return all((epoch, token) in seen for epoch in (0, 1) for token in range(4 * count))


def examples_of(stream: StreamingDataset, number: int) -> list[list[int]]:
    return [example["input_ids"].tolist() for example in islice(stream, number)]


def test_examples_are_mixed_within_a_portion_and_differ_by_epoch() -> None:
    """40 records in portions of 20."""
    order = [ids[0] // 4 for ids in examples_of(stream_of(40, per_chunk=10), 80)]
    first, second, again = order[:20], order[20:40], order[40:60]
    assert sorted(first) == sorted(again) == list(range(20)) and sorted(second) == list(range(20, 40))
    assert first != sorted(first) and first != again
    plain = [ids[0] // 4 for ids in examples_of(stream_of(40, per_chunk=10, seed=None), 40)]
    assert plain == list(range(40))


def test_fewer_portions_than_workers_leave_no_worker_waiting() -> None:
    for rank in range(5):
        assert len(examples_of(stream_of(3, per_chunk=3, rank=rank, world=5), 6)) == 6


def test_joined_examples_by_hand() -> None:
    """Records [0 1 2] [3 4 5] [6 7 8], the second trained on its last token only; blocks of 4."""
    no = IGNORE_INDEX
    examples = [
        {"input_ids": np.arange(start, start + 3), "labels": np.arange(start, start + 3)} for start in (0, 3, 6)
    ]
    examples[1]["labels"] = np.array([no, no, 5])
    blocks = [{name: column.tolist() for name, column in block.items()} for block in join_examples(examples, 4)]
    assert blocks == [
        {"input_ids": [0, 1, 2, 3], "labels": [no, 1, 2, no], "position_ids": [0, 1, 2, 0], "seq_lengths": [3, 1]},
        # what is left of record 1 begins anew: its first label has no token before it
        {"input_ids": [4, 5, 6, 7], "labels": [no, 5, no, 7], "position_ids": [0, 1, 0, 1], "seq_lengths": [2, 2]},
    ]  # the token 8 would be a block alone, with nothing to train
    assert join_examples([], 4) == []


def test_bad_records_end_the_run_or_are_counted() -> None:
    bad, empty = frozenset({1, 4}), frozenset({2})
    with pytest.raises(DataError, match="bad record") as error:
        examples_of(stream_of(8, bad=bad), 8)
    assert error.value.place == "numbers.jsonl:2"
    stream = stream_of(8, bad=bad, empty=empty, drop_bad_records=True)
    examples = list(islice(stream, 5))
    assert sorted(example["input_ids"][0].item() // 4 for example in examples) == [0, 3, 5, 6, 7]
    stream.progress.record(example[ORIGIN] for example in examples)
    assert stream.progress.totals() == {"dropped": 3, "tokens": 5 * 3}


def test_nothing_to_train_is_an_error_not_a_wait() -> None:
    with pytest.raises(DataError, match="no data"):
        examples_of(stream_of(0), 1)
    with pytest.raises(DataError, match=r"no record of the data gives an example \(8 rows were dropped\)"):
        examples_of(stream_of(8, empty=frozenset(range(8))), 1)


def test_portions_without_an_example_are_passed_over() -> None:
    empty = frozenset({0, 1, 2, 3})
    stream = stream_of(8, empty=empty)
    examples = list(islice(stream, 4))
    assert {example["input_ids"][0].item() // 4 for example in examples} == {4, 5, 6, 7}
    stream.progress.record(example[ORIGIN] for example in examples)
    assert stream.progress.totals()["dropped"] == 4


def test_an_epoch_may_end_without_an_example() -> None:
    """As long as any of its portions gave one."""
    stream = stream_of(12, empty=frozenset(range(4, 12)), seed=None)
    assert [example["input_ids"][0].item() // 4 for example in islice(stream, 10)] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_changed_data_are_refused() -> None:
    state = stream_of(8).state(Progress())
    stream_of(8).resume(state)
    for other in (stream_of(8, block_size=4), stream_of(8, seed=2), stream_of(8, chunks=1)):
        with pytest.raises(DataError, match="have changed since the checkpoint"):
            other.resume(state)
    with pytest.raises(DataError, match="have changed"):
        stream_of(8).resume({"kind": "blocks"})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_real_dataloader_with_workers(workers: int) -> None:
    loader = DataLoader(stream_of(30), batch_size=3, num_workers=workers, collate_fn=list)
    seen: Seen = Counter()
    for batch in islice(loader, 25):
        assert all(example["input_ids"].dtype == torch.int32 for example in batch)
        seen.update((example[ORIGIN].epoch, token) for example in batch for token in example["input_ids"].tolist())
    assert max(seen.values()) == 1
    assert {token for epoch, token in seen if epoch == 0} == set(range(120))


def test_another_seed_is_another_order() -> None:
    """Also of seeds of which only the lower 32 bits are used: -1 is the largest of them."""
    orders = {seed: examples_of(stream_of(40, per_chunk=10, seed=seed), 40) for seed in (0, 1, 2, -1, 2**32 - 1)}
    assert orders[-1] == orders[2**32 - 1]
    assert len({str(order) for order in orders.values()}) == 4
