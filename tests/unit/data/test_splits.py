"""Training and held-out rows of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset

from hftune.arguments import DataArguments
from hftune.data.encoding import Counts, to_dataset
from hftune.data.packing import Packing, PackStats
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


def test_each_split_is_packed_as_asked(tmp_path: Path) -> None:
    """What is packed by cutting is tokenised without a limit; the manifest and the line say what came of it."""
    seen: dict[str, Any] = {}

    def documents(given: list[Row], tokenizer: Any, *, length: int | None) -> tuple[Dataset, Counts]:
        seen[given[0].file] = length
        ids = [[number, number + 1] for number in range(len(given))]
        dataset = to_dataset({"input_ids": ids, "labels": ids})
        return dataset, Counts(rows=len(ids), used=len(ids), tokens=2 * len(ids), trained_tokens=len(ids))

    arguments = DataArguments(
        train_file_dir=write(tmp_path / "t.jsonl", range(5)),
        validation_file_dir=write(tmp_path / "v.jsonl", range(3)),
        data_cache_dir=str(tmp_path / "cache"),
    )
    packing = {"train": Packing(4, "wrapped", untruncated="length")}
    splits = load_splits(documents, arguments, make_tokenizer(), seed=1, packing=packing, length=7)
    assert seen == {arguments.train_file_dir: None, arguments.validation_file_dir: 7}
    assert splits.train["seq_lengths"][:] == [[2, 2], [2, 2], [2]]
    assert splits.evaluation is not None and splits.evaluation.column_names == ["input_ids", "labels"]
    assert splits.about["train"]["packing"]["packs"] == 3
    assert "packing" not in splits.about["eval"]
    seen.clear()
    again = load_splits(documents, arguments, make_tokenizer(), seed=1, packing=packing, length=7)
    assert not seen and again.train.to_dict() == splits.train.to_dict() and again.about == splits.about
    # Other settings, other rows.
    alone = load_splits(documents, arguments, make_tokenizer(), seed=1, length=7)
    assert len(alone.train) == 5


def test_packing_in_a_line() -> None:
    about = {**PackStats(2048, 10, 30, 2, 20000, 9000, 5).to_dict(), "strategy": "bfd_split"}
    line = describe(Counts(rows=30, used=30, tokens=20000, trained_tokens=9000, packing=about))
    assert line == (
        "30 records read, 30 used, 20000 tokens, 45 % trained, packed (bfd_split) into 10 rows of 2048, 97.7 % full, "
        "2 split, 5 tokens left out in rows with nothing to train"
    )
