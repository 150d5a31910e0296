"""Records with the places of their targets: whatever their order, and through packing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hftune.arguments.data import DataArguments
from hftune.data import teacher_targets
from hftune.data.counts import Counts
from hftune.data.packing.settings import Packing
from hftune.data.packing.sources import packed_source
from hftune.data.sources import TokenizedSource, select_records
from hftune.data.storage.cache import tokenizer_key
from hftune.errors import DataError
from hftune.logging import notices
from tests.unit.data.helpers import make_tokenizer
from tests.unit.data.teaching.writing import conversations, write

TOKENIZER = make_tokenizer()
LENGTHS = [8, 5, 12, 9, 30, 4]


def source(lengths: list[int] = LENGTHS, start: int = 0) -> TokenizedSource:
    dataset = conversations(lengths, start)
    counts = Counts(rows=len(dataset), used=len(dataset), tokens=sum(lengths), trained_tokens=sum(lengths) - 12)
    return TokenizedSource(dataset, counts, ["data.jsonl"], f"{lengths} {start}")


def taught_source(
    part: TokenizedSource, folder: str, data_args: DataArguments, *, drop: bool = False
) -> TokenizedSource:
    args: Any = SimpleNamespace(teacher_targets=folder, drop_untaught=drop)
    return teacher_targets.taught_source(TOKENIZER, args, data_args, part)


def arguments(folder: Path) -> DataArguments:
    return DataArguments(data_cache_dir=str(folder / "cache"))


def test_each_trained_token_knows_its_place(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations(LENGTHS), tokenizer=tokenizer_key(TOKENIZER))
    found = taught_source(source(), str(tmp_path / "targets"), arguments(tmp_path))
    rows = found.dataset["teacher_rows"]
    assert rows[0] == [-1, -1, 0, 1, 2, 3, 4, 5] and rows[1] == [-1, -1, 6, 7, 8] and rows[5] == [-1, -1, 54, 55]
    assert found.dataset["input_ids"] == source().dataset["input_ids"]
    # In another order, and one of them twice, each record has the same places.
    part = select_records(source(), [5, 0, 5])
    assert taught_source(part, str(tmp_path / "targets"), arguments(tmp_path)).dataset["teacher_rows"] == [
        rows[5],
        rows[0],
        rows[5],
    ]


def test_packed_rows_keep_the_places_of_their_tokens(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations(LENGTHS), tokenizer=tokenizer_key(TOKENIZER))
    args = arguments(tmp_path)
    taught = taught_source(source(), str(tmp_path / "targets"), args)
    packed = packed_source(taught, Packing(32), args).dataset
    assert len(packed) < len(LENGTHS)
    pairs = {tuple(pair) for row in packed for pair in zip(row["input_ids"], row["teacher_rows"], strict=True)}
    wanted = zip(taught.dataset["input_ids"], taught.dataset["teacher_rows"], strict=True)
    assert pairs == {pair for ids, rows in wanted for pair in zip(ids, rows, strict=True)}
    labelled = [np.array(row["labels"]) != -100 for row in packed]
    for row, trained in zip(packed, labelled, strict=True):
        np.testing.assert_array_equal(np.array(row["teacher_rows"]) >= 0, trained)
    # Without targets packed rows are what they were.
    assert "teacher_rows" not in packed_source(source(), Packing(32), args).dataset.column_names


def test_records_without_targets_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations(LENGTHS[:4]), tokenizer=tokenizer_key(TOKENIZER))
    folder, args = str(tmp_path / "targets"), arguments(tmp_path)
    with pytest.raises(DataError, match=r"2 of 6 records have no stored targets \(first: number 5") as error:
        taught_source(source(), folder, args)
    assert error.value.place == "data.jsonl" and "--max_length" in str(error.value.fix)
    whole = source()
    found = taught_source(whole, folder, args, drop=True)
    assert len(found.dataset) == 4 and found.counts.dropped == {"no stored targets": 2} and not whole.counts.dropped
    assert "2 of 6 records" in notices()[-1]
    with pytest.raises(DataError, match="6 of 6 records"):
        taught_source(source(start=1), folder, args, drop=True)


def test_other_targets_under_the_same_name_are_not_those_of_the_cache(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations(LENGTHS), tokenizer=tokenizer_key(TOKENIZER))
    taught_source(source(), str(tmp_path / "targets"), arguments(tmp_path))
    write(tmp_path / "others", conversations(LENGTHS).select([5, 4, 3, 2, 1, 0]), tokenizer=tokenizer_key(TOKENIZER))
    (tmp_path / "targets").rename(tmp_path / "before")
    (tmp_path / "others").rename(tmp_path / "targets")
    found = taught_source(source(), str(tmp_path / "targets"), arguments(tmp_path))
    assert found.dataset["teacher_rows"][0][2] == 50


def test_targets_of_another_template_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations(LENGTHS), tokenizer="another")
    with pytest.raises(DataError, match="another tokenizer or chat template"):
        taught_source(source(), str(tmp_path / "targets"), arguments(tmp_path))
