"""Documents of a tokenised folder: numbers, lengths and tokens across Arrow chunks, and folders that are none."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.documents import Documents, Segment, SourceOrder
from hftune.errors import DataError
from tests.unit.data.corpora import InMemory, write_corpus

LENGTHS = [3, 0, 5, 1, 4, 2, 0]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven documents of the tokens 0 to 14, two in each Arrow chunk."""
    return write_corpus(tmp_path_factory.mktemp("corpora") / "small", LENGTHS, rows_per_chunk=2)


def test_numbers_lengths_and_tokens(corpus: Path) -> None:
    documents = Documents(corpus)
    assert (len(documents), documents.tokens, documents.name) == (7, 15, "small")
    assert [documents.tokens_before(number) for number in range(8)] == [0, 3, 3, 8, 9, 13, 15, 15]
    for first in range(8):
        for last in range(first, 8):
            assert documents.lengths(first, last).tolist() == LENGTHS[first:last]
    # Document 4 holds the tokens 9 to 12.
    assert documents.read(4, 1, 3).tolist() == [10, 11]
    assert documents.read(4, 0, 4).tolist() == [9, 10, 11, 12]


def test_a_worker_opens_the_folder_itself(corpus: Path) -> None:
    documents = Documents(corpus, "named")
    sent = pickle.dumps(documents)
    assert len(sent) < 1000
    again = pickle.loads(sent)
    assert (again.name, again.read(2, 0, 5).tolist()) == ("named", [3, 4, 5, 6, 7])


def test_the_layout_knows_other_data(corpus: Path, tmp_path: Path) -> None:
    boundaries = np.array([0, 2, 5, 7])
    same = write_corpus(tmp_path / "same", LENGTHS)
    moved = write_corpus(tmp_path / "moved", [3, 0, 5, 2, 4, 1, 0])
    longer = write_corpus(tmp_path / "longer", [*LENGTHS, 0])
    layout = Documents(corpus).layout(boundaries)
    assert Documents(same).layout(boundaries) == layout
    assert Documents(moved).layout(boundaries) != layout
    assert Documents(longer).layout(boundaries) != layout


def test_other_integers_and_fms_fsdps_column(tmp_path: Path) -> None:
    Dataset.from_dict({"tokens": [[1, 2], [3]]}).save_to_disk(tmp_path / "wide")  # int64
    assert Documents(tmp_path / "wide").read(0, 0, 2).tolist() == [1, 2]


@pytest.mark.parametrize(
    "columns, cause",
    [
        ({"text": ["a"]}, "has no column input_ids, only: text"),
        ({"input_ids": ["a"]}, "is string, not lists of integers"),
        ({"input_ids": [[0.5]]}, "not lists of integers"),
        ({"input_ids": [[1], None]}, "holds nulls"),
        ({"input_ids": [[1], [None, 2]]}, "holds nulls"),
    ],
)
def test_what_holds_no_documents(tmp_path: Path, columns: dict, cause: str) -> None:
    Dataset.from_dict(columns).save_to_disk(tmp_path / "data")
    with pytest.raises(DataError, match=cause):
        Documents(tmp_path / "data")


def test_empty_documents_alone_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no token"):
        Documents(write_corpus(tmp_path / "empty", [0, 0]))


def test_no_folder_and_several_splits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no tokenised folder"):
        Documents(tmp_path / "nowhere")
    split = Dataset.from_dict({"input_ids": [[1]]})
    DatasetDict(train=split, test=split).save_to_disk(tmp_path / "both")
    with pytest.raises(DataError, match="several splits") as error:
        Documents(tmp_path / "both")
    assert str(tmp_path / "both" / "train") in str(error.value)


ORDERED = st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any)


def order_of(lengths: list[int], shards: int = 4, buffer: int = 3, seed: int = 0, name: str = "a") -> SourceOrder:
    return SourceOrder(InMemory(name, lengths), seed=seed, shards=shards, buffer=buffer)


def tokens_of(order: SourceOrder, position: int, count: int) -> list[int]:
    return [int(token) for segment in order.segments(position, count) for token in order.documents.read(*segment)]


@settings(deadline=None, max_examples=40)
@given(lengths=ORDERED, shards=st.integers(1, 60), buffer=st.integers(0, 60), seed=st.integers(0, 2**40))
def test_an_epoch_holds_every_token_once_and_documents_whole(
    lengths: list[int], shards: int, buffer: int, seed: int
) -> None:
    order = order_of(lengths, shards, buffer, seed)
    for epoch in range(3):
        segments = order.segments(epoch * order.tokens, order.tokens)
        assert sorted(segments) == [Segment(number, 0, size) for number, size in enumerate(lengths) if size]


@settings(deadline=None, max_examples=40)
@given(lengths=ORDERED, shards=st.integers(1, 60), buffer=st.integers(0, 60), data=st.data())
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
