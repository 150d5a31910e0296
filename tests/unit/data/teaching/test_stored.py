"""Stored targets: what was written is read, and what somebody changed is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from hftune.data.teacher_targets import StoredTargets, hashes_of
from hftune.errors import ManifestError
from tests.unit.data.teaching.writing import SMALL, VOCABULARY, K, conversations, said_at, shards, write


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


def change(folder: Path, **changes: Any) -> None:
    file = folder / "hftune.json"
    found = json.loads(file.read_text())
    found["targets"] |= changes
    file.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"k": 2}, "not 2 targets a token"),
        ({"k": "3"}, "does not say k"),
        ({"k": 0}, "cannot be"),
        ({"vocabulary": 1 << 40}, "cannot be"),
        ({"tokens": 55}, "its shards hold 56"),
        ({"shards": 6}, "there is no file"),
        ({"records": 5}, "its index has"),
        ({"teacher": None}, "does not say teacher"),
    ],
)
def test_a_manifest_that_says_otherwise_is_refused(folder: Path, changes: dict[str, Any], said: str) -> None:
    change(folder, **changes)
    with pytest.raises(ManifestError, match=said):
        StoredTargets(folder)


def edit(file: Path, name: str, place: Any, value: Any) -> None:
    tensors = load_file(file)
    tensors[name] = np.array(tensors[name])
    tensors[name][place] = value
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("places", 0, 56, "places that it does not have"),
        ("places", 0, -1, "places that it does not have"),
        ("hashes", 0, 1 << 63, "ascending"),
    ],
)
def test_an_index_that_was_changed_is_refused(folder: Path, name: str, place: int, value: int, said: str) -> None:
    edit(folder / "index.safetensors", name, place, value)
    if name == "hashes":
        edit(folder / "index.safetensors", name, 1, 0)
    with pytest.raises(ManifestError, match=said):
        StoredTargets(folder)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ids", VOCABULARY, "token ids"),
        ("ids", -2, "token ids"),
        ("log_probs", float("nan"), "that are none"),
        ("log_probs", 0.5, "that are none"),
        ("log_probs", 0.0, "sum to more than 1"),
    ],
)
def test_values_that_were_changed_are_refused_where_they_are_read(
    folder: Path, name: str, value: float, said: str
) -> None:
    edit(folder / "targets-00001.safetensors", name, (0, 1), value)
    stored = StoredTargets(folder)
    stored.take(torch.arange(9))
    with pytest.raises(ManifestError, match=said):
        stored.take(torch.tensor([9]))
    with pytest.raises(ManifestError, match="a place that it does not have"):
        stored.take(torch.tensor([56]))


def test_files_of_others_are_refused(folder: Path, tmp_path: Path) -> None:
    shard = folder / "targets-00000.safetensors"
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ManifestError, match="leads out of"):
        StoredTargets(folder)
    shard.unlink()
    tensors = load_file(folder / "targets-00001.safetensors")
    save_file({**tensors, "ids": tensors["ids"].astype(np.int64)}, shard)
    with pytest.raises(ManifestError, match="targets a token"):
        StoredTargets(folder)


def test_another_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds no targets"):
        StoredTargets(tmp_path)
    (tmp_path / "hftune.json").write_text('{"stage": "sft", "status": "complete"}')
    with pytest.raises(ManifestError, match="no finished result of hftune teach"):
        StoredTargets(tmp_path)
