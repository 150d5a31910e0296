"""Tokenised sources: what is held out of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.data.compared_answers import to_preference
from hftune.data.counts import Counts
from hftune.data.encode import ChatEncoder
from hftune.data.files import Row
from hftune.data.records import to_conversation, to_labelled, to_prompt, to_text
from hftune.data.sources import KINDS, TokenizedSource, dummy_chunks, generated_source, hold_out, split_source
from hftune.data.splits import load_splits
from hftune.errors import ArgumentError
from tests.unit.data.helpers import make_tokenizer


def test_held_out_rows_are_drawn_by_the_seed_and_kept_in_order() -> None:
    train, held = hold_out(50, 10.0, seed=1)
    assert len(held) == 5 and len(train) == 45
    assert sorted(train + held) == list(range(50))
    assert held == sorted(held) and train == sorted(train)
    assert hold_out(50, 10.0, seed=1) == (train, held)
    assert hold_out(50, 10.0, seed=2) != (train, held)


def test_both_sides_keep_a_row() -> None:
    for percentage in (0.001, 99.9):
        train, held = hold_out(2, percentage, seed=0)
        assert len(train) == len(held) == 1


def source(begins: list[bool] | None, rows: int) -> TokenizedSource:
    columns: dict[str, list[Any]] = {"row": [*range(rows)], "length": [1] * rows}
    if begins is not None:
        columns["begins"] = begins
    return TokenizedSource(Dataset.from_dict(columns), Counts(rows=rows, used=rows), [], "key")


@pytest.mark.parametrize("seed", range(8))
def test_all_rows_of_a_record_are_on_one_side(seed: int) -> None:
    # Records of 3, 1, 2 and 2 rows.
    begins = [True, False, False, True, True, False, True, False]
    sides = split_source(source(begins, 8), 25.0, seed)
    rows = [[*side.dataset["row"]] for side in sides]
    assert sorted(rows[0] + rows[1]) == list(range(8)) and rows[0] == sorted(rows[0])
    assert rows[1] in ([0, 1, 2], [3], [4, 5], [6, 7])
    assert sides[1].counts.used == len(rows[1]) and sides[0].key != sides[1].key != "key"


def test_rows_are_records_where_nothing_else_is_known() -> None:
    for begins in (None, [True] * 4):
        train, held = split_source(source(begins, 4), 25.0, seed=1)
        assert [len(train.dataset), len(held.dataset)] == [3, 1]
        assert [*held.dataset["row"]] == hold_out(4, 25.0, 1)[1]


def test_rows_without_their_first_one_are_not_lost() -> None:
    train, held = split_source(source([False, True, False], 3), 50.0, seed=0)
    assert sorted([*train.dataset["row"], *held.dataset["row"]]) == [0, 1, 2]


def test_a_single_record_is_trained() -> None:
    train, held = split_source(source([True, False], 2), 50.0, seed=0)
    assert len(train.dataset) == 2 and len(held.dataset) == 0


def test_generated_records(tmp_path: Path) -> None:
    arguments = DataArguments(dummy_data=300, data_cache_dir=str(tmp_path / "cache"), max_train_samples=250)
    splits = load_splits(
        ChatEncoder(make_tokenizer(), max_length=999), arguments, parse_arguments("sft", ["--output_dir", "o"])[-1]
    )
    assert len(splits.train) == 250 and splits.about["train"]["files"] == ["dummy_data"]


def test_the_same_records_are_found_again_and_others_are_not(tmp_path: Path) -> None:
    encoder, found = ChatEncoder(make_tokenizer(), max_length=999), []
    for number in (20, 20, 21):
        found.append(generated_source(encoder, DataArguments(dummy_data=number, data_cache_dir=str(tmp_path))))
    assert found[0].key == found[1].key != found[2].key
    assert [len(part.dataset) for part in found] == [20, 20, 21] and found[0].files == ["dummy_data"]
    # A longer data set begins with a shorter one.
    assert found[2].dataset[:20] == found[0].dataset[:]


READERS: dict[str, Callable[[Row], Any]] = dict(
    zip(KINDS, (to_text, to_conversation, to_preference, to_prompt, to_labelled), strict=True)
)


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_a_kind(kind: str) -> None:
    found = list(dummy_chunks(600, kind, rows_per_chunk=256, words=40))
    rows = [row for chunk in pickle.loads(pickle.dumps(found)) for row in chunk.rows()]
    assert [row.origin for row in rows] == [f"dummy_data:{number}" for number in range(1, 601)]
    made = [str(READERS[kind](row)) for row in rows if isinstance(row, Row)]
    assert len(set(made)) == 600
    # A record does not depend on how many there are, nor on the chunk it is in.
    again = [row for chunk in dummy_chunks(300, kind, rows_per_chunk=7, words=40) for row in chunk.rows()]
    assert again == rows[:300]


def test_their_length() -> None:
    lengths = [
        len(row.value["text"].split()) - 1 for chunk in dummy_chunks(400, "text", words=100) for row in chunk.rows()
    ]
    assert min(lengths) >= 50 and max(lengths) <= 150 and 90 < sum(lengths) / len(lengths) < 110


def test_none_at_all() -> None:
    with pytest.raises(ArgumentError, match="0 generated records"):
        list(dummy_chunks(0, "text"))
