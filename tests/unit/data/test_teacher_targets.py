"""Stored targets: found by what records hold, read, and refused where they were changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hftune.arguments.data import DataArguments
from hftune.constants import IGNORE_INDEX
from hftune.data import teacher_targets
from hftune.data.counts import Counts
from hftune.data.packing import Packing, packed_source
from hftune.data.sources import TokenizedSource, select_records
from hftune.data.storage import tokenizer_key
from hftune.data.teacher_targets import StoredTargets, hashes_of, records, trained_places
from hftune.errors import DataError, ManifestError
from hftune.logging import notices
from tests.unit.data.helpers import make_tokenizer, to_dataset
from tests.unit.data.target_files import SMALL, K, conversations, said_at, shards, write

ROWS = {
    "input_ids": [[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 3], [], [1, 2]],
    "labels": [[-100, 2, 3], [4, 5], [-100, 2, 3], [-100, -100, 3], [], [-100, 2]],
}


def test_equal_records_have_one_hash_and_others_another() -> None:
    hashes, counts = hashes_of(to_dataset(ROWS))
    assert hashes.shape == (6, 2) and hashes.dtype == np.uint64
    # The label of a first token is not trained: nothing predicts it.
    assert counts.tolist() == [2, 1, 2, 1, 0, 1]
    names = [tuple(row) for row in hashes.tolist()]
    assert names[0] == names[2] and len(set(names)) == 5


def test_a_selection_in_another_order_has_the_same_hashes() -> None:
    dataset = to_dataset(ROWS)
    hashes, _ = hashes_of(dataset)
    order = [5, 0, 3]
    found, counts = hashes_of(dataset.select(order))
    np.testing.assert_array_equal(found, hashes[order])
    assert counts.tolist() == [1, 2, 1]


def test_records_are_read_as_they_are_over_several_portions() -> None:
    lengths = [1 + number % 5 for number in range(2500)]
    dataset = to_dataset({name: [[number] * length for number, length in enumerate(lengths)] for name in ROWS})
    found = list(records(dataset.select(range(3, 2500))))
    assert len(found) == 2497
    for number, (ids, trained) in enumerate(found, start=3):
        assert ids.tolist() == [number] * lengths[number] and int(trained.sum()) == lengths[number] - 1


def test_trained_places() -> None:
    labels = np.array([3, IGNORE_INDEX, 5, IGNORE_INDEX])
    assert trained_places(labels).tolist() == [False, False, True, False]
    assert labels.tolist() == [3, IGNORE_INDEX, 5, IGNORE_INDEX]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shards, "SHARD_BYTES", SMALL)
    monkeypatch.setattr(shards, "LEAST_SHARDS", 1)
    write(tmp_path / "targets", conversations([8, 5, 12, 9, 30, 4]))
    return tmp_path / "targets"


def test_what_was_written_is_read_at_any_place(folder: Path) -> None:
    stored = StoredTargets(folder)
    # 6 + 3, 10, 7, 28, 2 tokens: ten a shard, and a record is never divided.
    assert stored.about["shards"] == 5 and stored.starts.tolist() == [0, 9, 19, 26, 54, 56]
    rows = torch.tensor([55, 0, -1, 9, 8, 53, 0, 20])
    ids, log_probs = stored.take(rows)
    wanted = said_at(rows.numpy())
    there = rows >= 0
    np.testing.assert_array_equal(ids[there], wanted[0][there.numpy()])
    np.testing.assert_allclose(log_probs[there], wanted[1][there.numpy()], rtol=1e-6)
    assert (ids[~there] == -1).all() and (log_probs[~there] == 0).all()
    assert (ids.dtype, log_probs.dtype, ids.shape) == (torch.int64, torch.float32, (8, K))
    assert stored.take(torch.tensor([], dtype=torch.int64))[0].shape == (0, K)


def test_records_are_found_in_any_order_and_others_are_not(folder: Path) -> None:
    stored = StoredTargets(folder)
    dataset = conversations([8, 5, 12, 9, 30, 4])
    hashes, _ = hashes_of(dataset.select([4, 0, 2]))
    assert stored.places_of(hashes).tolist() == [26, 0, 9]
    assert stored.places_of(hashes_of(conversations([8, 5], start=1))[0]).tolist() == [-1, -1]


def test_many_shards_are_read_with_few_of_them_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hftune.data.teacher_targets._OPEN", 1)
    stored = StoredTargets(folder)
    for _ in range(2):
        ids, _ = stored.take(torch.arange(56))
        np.testing.assert_array_equal(ids, said_at(np.arange(56))[0])
    assert stored.shard.cache_info().currsize == 1


def test_files_of_others_are_refused(folder: Path, tmp_path: Path) -> None:
    shard = folder / "targets-00000.safetensors"
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ManifestError, match="leads out of"):
        StoredTargets(folder)


def test_another_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds no targets"):
        StoredTargets(tmp_path)
    (tmp_path / "hftune.json").write_text('{"stage": "sft", "status": "complete"}')
    with pytest.raises(ManifestError, match="no finished result of hftune teach"):
        StoredTargets(tmp_path)


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
