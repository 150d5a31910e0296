"""Training and held-out rows of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset

from hftune.arguments import DataArguments
from hftune.data.encoding import Counts
from hftune.data.sources import Row
from hftune.data.splits import describe, hold_out, load_splits
from tests.unit.data.helpers import make_tokenizer


def rows(count: int) -> list[Row]:
    return [Row({"n": number}, "f.jsonl", number + 1) for number in range(count)]


def build(given: list[Row], tokenizer: Any, **settings: Any) -> tuple[Dataset, Counts]:
    """One token a row: its number."""
    numbers = [row.value["n"] for row in given]
    return Dataset.from_dict({"input_ids": [[n] for n in numbers]}), Counts(rows=len(numbers), used=len(numbers))


def numbers_of(dataset: Dataset) -> list[int]:
    return [ids[0] for ids in dataset["input_ids"]]


def write(file: Path, numbers: range) -> str:
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))
    return str(file)


def test_held_out_rows_are_drawn_by_the_seed_and_kept_in_order() -> None:
    train, held = hold_out(rows(50), 10.0, seed=1)
    assert len(held) == 5 and len(train) == 45
    assert sorted(row.line for row in train + held) == list(range(1, 51))
    assert [row.line for row in held] == sorted(row.line for row in held)
    assert hold_out(rows(50), 10.0, seed=1) == (train, held)
    assert hold_out(rows(50), 10.0, seed=2) != (train, held)


def test_both_sides_keep_a_row() -> None:
    for percentage in (0.001, 99.9):
        train, held = hold_out(rows(2), percentage, seed=0)
        assert len(train) == len(held) == 1


def test_folders_limits_and_cache(tmp_path: Path) -> None:
    arguments = DataArguments(
        train_file_dir=write(tmp_path / "train.jsonl", range(10)),
        validation_file_dir=write(tmp_path / "held.jsonl", range(90, 99)),
        max_train_samples=4,
        max_eval_samples=2,
        data_cache_dir=str(tmp_path / "cache"),
    )
    splits = load_splits(build, arguments, make_tokenizer(), seed=0)
    assert numbers_of(splits.train) == [0, 1, 2, 3]
    assert splits.evaluation is not None and numbers_of(splits.evaluation) == [90, 91]
    assert splits.about["train"]["used"] == 4 and splits.about["train"]["files"] == [str(tmp_path / "train.jsonl")]
    arguments.max_train_samples = 5
    assert numbers_of(load_splits(build, arguments, make_tokenizer(), seed=0).train) == [0, 1, 2, 3, 4]


def test_a_share_is_held_out_where_no_folder_is_given(tmp_path: Path) -> None:
    arguments = DataArguments(
        train_file_dir=write(tmp_path / "train.jsonl", range(10)),
        validation_split_percentage=20,
        data_cache_dir=str(tmp_path / "cache"),
    )
    splits = load_splits(build, arguments, make_tokenizer(), seed=3)
    assert splits.evaluation is not None
    train, held = numbers_of(splits.train), numbers_of(splits.evaluation)
    assert len(held) == 2 and sorted(train + held) == list(range(10))


def test_counts_in_words() -> None:
    counts = Counts(rows=10, used=7, dropped={"too long": 3}, truncated=1, tokens=200, trained_tokens=50)
    assert describe(counts) == "10 records read, 7 used, 3 dropped (too long), 1 truncated, 200 tokens, 25 % trained"
