"""Blocks for pre-training: nothing lost or doubled in any world, resumed at any point in any other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from hftune.constants import IGNORE_INDEX
from hftune.data.blocks import BlockDataset, BlockSampler, HeldOutBlocks, Settings
from hftune.errors import DataError
from tests.unit.data.corpora import InMemory

CORPORA = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=25).filter(any), min_size=1, max_size=4)


def sources_of(corpora: list[list[int]]) -> list[InMemory]:
    """Sources a, b, c, ... whose tokens all differ."""
    first, sources = 0, []
    for number, lengths in enumerate(corpora):
        sources.append(InMemory("abcdef"[number], lengths, first))
        first += sum(lengths)
    return sources


def dataset_of(corpora: list[list[int]], block_size: int = 4, **given: object) -> BlockDataset:
    order = Settings(seed=3, logical_shards=5, shuffle_buffer=4)
    return BlockDataset(sources_of(corpora), block_size, settings=order, **given)  # type: ignore[arg-type]


class World:
    """Some processes with workers that train a dataset by the Trainer's own means, step by step.

    Every worker has the dataset to itself, and has fetched ahead when the world is stopped.

    Args:
        make: Makes the dataset, as each process does.
        batch: Blocks a micro-batch of a process.
        accumulation: Micro-batches a step.
    """

    def __init__(
        self, make: Callable[[], BlockDataset], ranks: int, workers: int, batch: int, accumulation: int
    ) -> None:
        self.make, self.ranks, self.workers = make, ranks, max(1, workers)
        self.batch, self.accumulation = batch, accumulation
        self.step_size = ranks * batch * accumulation
        self.data = make()
        self.data.round_to_steps(self.step_size)

    def train(self, first_step: int, steps: int, origin: int) -> tuple[list[int], Counter[int]]:
        """Blocks and tokens that are trained in `steps` steps from `first_step` on, over all ranks."""
        blocks: list[int] = []
        tokens: Counter[int] = Counter()
        for rank in range(self.ranks):
            copies = [self.make() for _ in range(self.workers)]
            batches = self._batches_of(rank, first_step, origin)
            for number in range(steps * self.accumulation):
                batch = next(batches)
                blocks += batch
                tokens += tokens_of(copies[number % self.workers], batch)
            for copy in copies:
                tokens_of(copy, next(batches))  # fetched, and lost with the process
        return blocks, tokens

    def _batches_of(self, rank: int, step: int, origin: int) -> Iterator[list[int]]:
        """The micro-batches of a rank: what the Trainer's samplers give, epoch after epoch."""
        epoch, within = divmod(step, len(self.data) // self.step_size)
        while True:
            sampler = BlockSampler(len(self.data), origin)
            sampler.set_epoch(epoch)
            shard = BatchSamplerShard(BatchSampler(sampler, self.batch, False), self.ranks, rank)
            yield from SkipBatchSampler(shard, within * self.accumulation)
            epoch, within = epoch + 1, 0


def tokens_of(data: BlockDataset, blocks: list[int]) -> Counter[int]:
    return Counter(token for block in blocks for token in data[block]["input_ids"].tolist())


WORLDS = st.tuples(st.integers(1, 8), st.integers(0, 4), st.integers(1, 3), st.integers(1, 3))


@pytest.mark.long
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    corpora=CORPORA,
    weighted=st.booleans(),
    legs=st.lists(st.tuples(WORLDS, st.integers(0, 6)), min_size=1, max_size=4),
    shares=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    size=st.integers(1, 7),
)
def test_every_document_once_an_epoch_in_any_world_and_after_any_stop(
    corpora: list[list[int]], weighted: bool, legs: list, shares: list[int], size: int
) -> None:
    """Each leg is a process group that trains some steps and is stopped; the next has another world.

    After each leg every token of a source has come as often as any other of it, or once more.
    """
    seen: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    steps_made, done = 0, 0
    for (ranks, workers, batch, accumulation), steps in legs:
        make = partial(_resumed, corpora, size, shares[: len(corpora)] if weighted else None, state)
        world = World(make, ranks, workers, batch, accumulation)
        blocks, tokens = world.train(steps_made, steps, done - steps_made * world.step_size)
        assert sorted(blocks) == list(range(done, done + steps * world.step_size))
        seen, steps_made, done = seen + tokens, steps_made + steps, done + len(blocks)
        state = json.loads(json.dumps(world.data.state(done)))
        for source in world.data.sources:
            ids = source.documents._made[0].values.to_pylist()
            times = [seen[token] for token in ids]
            assert max(times) - min(times) <= 1
            assert state["sources"][source.documents.name]["position"] == sum(times)


def _resumed(
    corpora: list[list[int]], block_size: int, shares: list[int] | None, state: dict[str, Any] | None
) -> BlockDataset:
    data = dataset_of(corpora, block_size, shares=shares)
    if state is not None:
        data.check(state)
    return data


def test_the_epochs_of_all_sources_end_together_without_weights() -> None:
    data = dataset_of([[3] * 7, [2] * 20, [1]], block_size=1)  # 21, 40 and 1 tokens
    data.round_to_steps(1)
    assert len(data) == 62
    assert tokens_of(data, list(range(62))) == Counter(range(62))
    assert data.epochs(62) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_other_data_or_another_order_is_refused() -> None:
    corpora = [[3] * 7, [2] * 20]
    state = json.loads(json.dumps(dataset_of(corpora).state(2)))
    dataset_of(corpora).check(state)
    swapped = BlockDataset(sources_of(corpora)[::-1], 4, settings=Settings(seed=3, logical_shards=5, shuffle_buffer=4))
    seed = BlockDataset(sources_of(corpora), 4, settings=Settings(seed=4, logical_shards=5, shuffle_buffer=4))
    for other, words in (
        (dataset_of([[3] * 6 + [2, 1], [2] * 20]), "sources .*'documents': 7.* then, .*'documents': 8"),
        (dataset_of(corpora[:1]), "sources .*'b'.* then"),
        (swapped, "sources {'a'.* then, {'b'"),
        (dataset_of(corpora, shares=[1, 2]), "sources .*'share': 21.* then, .*'share': 1"),
        (dataset_of(corpora, 5), "block_size 4 then, 5 now"),
        (seed, "settings .*'seed': 3.* then, .*'seed': 4"),
    ):
        with pytest.raises(DataError, match=words):
            other.check(state)
    with pytest.raises(DataError, match="kind stream then, blocks now"):
        dataset_of(corpora).check({"kind": "stream"})


def test_an_example_by_hand() -> None:
    """Documents [0 1 2] [3 4] [5 6 7 8 9] in their order, blocks of 4."""
    order = Settings(shuffle_buffer=0)
    data = BlockDataset(sources_of([[3, 2, 5]]), 4, settings=order)
    no = IGNORE_INDEX
    expected = [
        # the whole of document 0, and the first token of document 1, which nothing predicts
        {"input_ids": [0, 1, 2, 3], "labels": [no, 1, 2, no], "position_ids": [0, 1, 2, 0], "seq_lengths": [3, 1]},
        # the rest of document 1 begins anew, and so does document 2
        {"input_ids": [4, 5, 6, 7], "labels": [no, no, 6, 7], "position_ids": [0, 0, 1, 2], "seq_lengths": [1, 3]},
        # the end of epoch 0 and the beginning of epoch 1
        {"input_ids": [8, 9, 0, 1], "labels": [no, 9, no, 1], "position_ids": [0, 1, 0, 1], "seq_lengths": [2, 2]},
    ]
    for block, columns in enumerate(expected):
        example = data[block]
        assert {name: column.tolist() for name, column in example.items()} == columns
        assert {column.dtype for column in example.values()} == {torch.int32}


def test_held_out_blocks_are_every_token_once() -> None:
    held_out = HeldOutBlocks(sources_of([[3, 0, 2, 5]])[0], 4)
    assert [held_out[block]["input_ids"].tolist() for block in range(len(held_out))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    with pytest.raises(IndexError):
        held_out[3]


def test_a_token_that_the_model_does_not_know_is_named() -> None:
    data = BlockDataset(sources_of([[3, 2, 5]]), 4, settings=Settings(shuffle_buffer=0), vocabulary=7)
    assert data[0]["input_ids"].tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"token id 7 of document 2 is not in the vocabulary of 7"):
        data[1]
