"""Documents of a tokenised folder: numbers, lengths and tokens across Arrow chunks, and folders that are none."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from hftune.data.documents import Documents
from hftune.errors import DataError
from tests.unit.data.corpora import write_corpus

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


def test_a_saved_selection_is_read_as_selected(corpus: Path, tmp_path: Path) -> None:
    from datasets import load_from_disk

    load_from_disk(corpus).select([4, 0]).save_to_disk(tmp_path / "selected")
    documents = Documents(tmp_path / "selected")
    assert documents.read(0, 0, 4).tolist() == [9, 10, 11, 12]
    assert documents.read(1, 0, 3).tolist() == [0, 1, 2]


def test_tokens_are_mapped_not_copied(corpus: Path) -> None:
    view = Documents(corpus).read(2, 0, 5)
    assert not view.flags.owndata and not view.flags.writeable


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
