"""The last batches of an epoch, with accelerate's own sharding of batches."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, SequentialSampler

from hftune.constants import FILLER, LABEL_COUNT
from hftune.data.collators import CausalCollator, FlatCollator
from hftune.data.pair_collators import FlatPairCollator
from hftune.data.pair_collators import PairCollator as RewardPairs
from hftune.distributed.ranks import Mesh
from hftune.trainers.features import repeated_rows
from hftune.trainers.features.repeated_rows import OF_TOKENS, ROWS, RepeatedRows, WithRows, rows_behind
from hftune.trainers.features.token_loss import next_tokens, tokens_of
from hftune.trainers.preference.batches import PairCollator
from tests.unit.trainers.features import made_up


def record(number: int) -> dict[str, list[int]]:
    """As many tokens as its number tells, all of them its number + 1."""
    length = 2 + number % 3
    return {"input_ids": [number + 1] * length, "labels": [-100] + [number + 1] * (length - 1)}


def labels_seen(
    monkeypatch: pytest.MonkeyPatch, records: int, processes: int, size: int, collator: Any, done: int = 0
) -> list[int]:
    """Numbers of the records whose labels are trained in an epoch, over all ranks, after `done` batches a rank."""
    seen: list[int] = []
    for batch in batches_of(monkeypatch, records, processes, size, collator, record, done):
        assert ROWS not in batch
        assert batch[LABEL_COUNT] == int((next_tokens(batch) != -100).sum()), "as a device would count them"
        seen += {int(label) - 1 for label in batch["labels"].flatten() if label != -100}
    return sorted(seen)


def batches_of(
    monkeypatch: pytest.MonkeyPatch,
    records: int,
    processes: int,
    size: int,
    collator: Any,
    made: Any,
    done: int = 0,
) -> Iterator[dict[str, Any]]:
    """The batches of an epoch, rank by rank, as the feature leaves them."""
    for rank in range(processes):
        monkeypatch.setattr(
            repeated_rows, "ranks", SimpleNamespace(rank=lambda r=rank: r, world_size=lambda: processes)
        )
        feature = RepeatedRows()
        feature._records, feature._place = records, done
        run = made_up.run(args={"mesh": Mesh(world=processes)}, _train_batch_size=size, data_collator=collator)
        collate = WithRows(collator) if isinstance(collator, OF_TOKENS) else collator
        inner = BatchSampler(SequentialSampler(range(records)), size, drop_last=False)
        batches = list(BatchSamplerShard(inner, processes, rank))[done:] if processes > 1 else list(inner)[done:]
        yield from feature.batches(run, (collate([made(number) for number in batch]) for batch in batches))


@pytest.mark.parametrize("collator", [CausalCollator(0), FlatCollator()], ids=["padded", "flat"])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_each_record_once(monkeypatch: pytest.MonkeyPatch, processes: int, collator: Any) -> None:
    for records in range(1, 15):
        for size in (1, 2, 3):
            assert labels_seen(monkeypatch, records, processes, size, collator) == list(range(records)), (records, size)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_each_pair_counts_once(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """Of DPO and reward models, whose batches say which of their pairs only fill them up."""
    pairs = PairCollator(0, flat=True)
    for records, size in ((1, 2), (7, 2), (8, 3), (6, 3)):
        seen: list[int] = []
        for batch in batches_of(monkeypatch, records, processes, size, pairs, pair):
            chosen = batch["answer_ids"][: batch["chosen_total"]].tolist()
            seen += [
                token for token, filler in zip(chosen, batch.get(FILLER, [False] * size), strict=False) if not filler
            ]
            assert FILLER not in batch or len(batch[FILLER]) == len(chosen) == size
        assert sorted(seen) == list(range(records)), (records, size)


def pair(number: int) -> dict[str, list[int]]:
    return {"prompt_ids": [9], "chosen_ids": [number], "rejected_ids": [8]}


@pytest.mark.parametrize("collator", [PairCollator(0, flat=False), FlatPairCollator(0), RewardPairs(0)])
def test_who_marks_fillers(collator: Any) -> None:
    assert collator.loss_knows_fillers and not hasattr(CausalCollator(0), "loss_knows_fillers")


def test_going_on_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert labels_seen(monkeypatch, 11, 2, 2, CausalCollator(0), done=2) == [8, 9, 10]


def test_the_tokens_of_rows_that_only_fill_up() -> None:
    labels = torch.tensor([[1, 2], [3, 4], [5, 6]])
    assert rows_behind(labels, 1, None).tolist() == [[False] * 2, [True] * 2, [True] * 2]
    flat = torch.tensor([[1, 2, 3, 4, 5]])
    assert rows_behind(flat, 1, [2, 3]).tolist() == [[False, False, True, True, True]]
    assert rows_behind(flat, 0, [2, 3]).all()


@pytest.mark.parametrize("collator", [CausalCollator(0), FlatCollator()])
def test_rows_that_only_fill_up_are_marked(monkeypatch: pytest.MonkeyPatch, collator: Any) -> None:
    """Of three records on two processes the second one's last is a filler: 2, 3 and 4 tokens are in the data."""
    found = [batch for batch in batches_of(monkeypatch, 3, 2, 1, collator, record)]
    assert sum(int(tokens_of(batch)) for batch in found) == 2 + 3 + 4
    assert [FILLER in batch for batch in found] == [False, False, False, True]


def test_a_collator_that_keeps_lengths_is_known_by_the_one_within(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = FlatCollator()
    run = made_up.run(args={"mesh": Mesh(world=2)}, _train_batch_size=2, data_collator=WithRows(flat))
    monkeypatch.setattr(repeated_rows, "ranks", SimpleNamespace(rank=lambda: 1))
    feature = RepeatedRows()
    feature._records = 3
    (batch,) = feature.batches(run, iter([WithRows(flat)([record(2), record(0)])]))
    assert {int(label) for label in batch["labels"].flatten() if label != -100} == {3}
