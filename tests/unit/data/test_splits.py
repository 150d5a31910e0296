"""Training and held-out rows of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset

from hftune.arguments import DataArguments
from hftune.data.encoder import IDS, Encoder
from hftune.data.encoding import Counts
from hftune.data.parts import hold_out
from hftune.data.sources import Row
from hftune.data.splits import describe, load_splits
from hftune.errors import DataError
from tests.unit.data.helpers import make_tokenizer


class Numbers(Encoder):
    """One token a row: its number."""

    schema = pa.schema({"input_ids": IDS, "length": pa.int32(), "trained": pa.int32()})

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()

    @classmethod
    def from_arguments(cls, tokenizer: Any, args: Any) -> Numbers:
        return cls()

    def settings(self) -> dict[str, Any]:
        return {}

    def parse(self, row: Row) -> int:
        if row.value["n"] < 0:
            raise DataError("negative", place=row.origin, kind="negative number")
        return int(row.value["n"])

    def encode(self, parsed: list[int], counts: Counts) -> dict[str, list[Any]]:
        counts.used += len(parsed)
        counts.tokens += len(parsed)
        counts.trained_tokens += sum(parsed)
        return {"input_ids": [np.array([n]) for n in parsed], "length": [1] * len(parsed), "trained": parsed}


def numbers_of(dataset: Dataset) -> list[int]:
    return [ids[0] for ids in dataset["input_ids"]]


def write(file: Path, numbers: range) -> str:
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))
    return str(file)


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


def test_folders_limits_and_cache(tmp_path: Path) -> None:
    arguments = DataArguments(
        train_file_dir=write(tmp_path / "train.jsonl", range(10)),
        validation_file_dir=write(tmp_path / "held.jsonl", range(90, 99)),
        max_train_samples=4,
        max_eval_samples=2,
        data_cache_dir=str(tmp_path / "cache"),
    )
    splits = load_splits(Numbers(), arguments, SimpleNamespace(seed=0))
    assert numbers_of(splits.train) == [0, 1, 2, 3]
    assert splits.evaluation is not None and numbers_of(splits.evaluation) == [90, 91]
    assert splits.about["train"]["used"] == 4 and splits.about["train"]["files"] == [str(tmp_path / "train.jsonl")]
    arguments.max_train_samples = 5
    assert numbers_of(load_splits(Numbers(), arguments, SimpleNamespace(seed=0)).train) == [0, 1, 2, 3, 4]


def test_a_share_is_held_out_where_no_folder_is_given(tmp_path: Path) -> None:
    arguments = DataArguments(
        train_file_dir=write(tmp_path / "train.jsonl", range(10)),
        validation_split_percentage=20,
        data_cache_dir=str(tmp_path / "cache"),
    )
    splits = load_splits(Numbers(), arguments, SimpleNamespace(seed=3))
    assert splits.evaluation is not None
    train, held = numbers_of(splits.train), numbers_of(splits.evaluation)
    assert len(held) == 2 and sorted(train + held) == list(range(10))
    # Each part is counted on its own.
    assert splits.about["eval"]["trained_tokens"] == sum(held) and splits.about["eval"]["used"] == 2
    assert splits.about["train"]["trained_tokens"] == sum(train) and splits.train.column_names == [
        "input_ids",
        "length",
    ]


def test_bad_records_stop_the_run_or_are_counted(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"n": 1}\n{"n": -1}\n{"n"\n{"n": 4}\n')
    arguments = DataArguments(
        train_file_dir=str(tmp_path / "train.jsonl"), data_cache_dir=str(tmp_path / "cache"), max_train_samples=4
    )
    with pytest.raises(DataError, match="negative") as caught:
        load_splits(Numbers(), arguments, SimpleNamespace(seed=0))
    assert caught.value.place == f"{tmp_path}/train.jsonl:2"
    arguments.on_bad_record = "drop"
    splits = load_splits(Numbers(), arguments, SimpleNamespace(seed=0))
    assert numbers_of(splits.train) == [1, 4]
    assert splits.about["train"]["dropped"] == {"negative number": 1, "malformed JSON": 1}
    assert splits.about["train"]["examples"]["negative number"] == f"{tmp_path}/train.jsonl:2: negative"


def test_counts_in_words() -> None:
    counts = Counts(rows=10, used=7, dropped={"too long": 3}, truncated=1, tokens=200, trained_tokens=50)
    assert describe(counts) == "10 records read, 7 used, 3 dropped (too long), 1 truncated, 200 tokens, 25 % trained"
