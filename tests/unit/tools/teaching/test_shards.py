"""The work of a data set and its shards: the same in any order of writing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hftune.data.teacher_targets import SHARD_KINDS
from hftune.opening.safetensors_file import map_arrays
from hftune.tools.teaching import shards
from hftune.tools.teaching.shards import Shard, divide, lost_mass
from tests.unit.data.target_files import SMALL, K, conversations, fill, said_at


def test_records_are_asked_about_once_and_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", SMALL)
    monkeypatch.setattr(shards, "LEAST_SHARDS", 1)
    dataset = conversations([8, 5, 2, 12, 30, 4]).select([0, 1, 0, 2, 3, 4, 1, 5])
    work = divide(dataset, K)
    # Number 3 has nothing trained, 2 and 6 are there already.
    assert work.records.tolist() == [0, 1, 4, 5, 7]
    assert work.places.tolist() == [0, 6, 9, 19, 47, 49]
    assert work.bounds.tolist() == [0, 2, 3, 4, 5] and work.shards == 4
    assert [work.tokens_of(shard) for shard in range(4)] == [9, 10, 28, 2]
    # Of few records each process gets some all the same.
    monkeypatch.setattr(shards, "LEAST_SHARDS", 64)
    assert divide(dataset, K).shards == 5


def test_a_shard_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARDS", 1)
    work = divide(conversations([8, 5, 12]), K)
    file = tmp_path / "one.safetensors"
    less = Shard(19, K)
    less.write(np.arange(18), np.zeros((18, K)), np.full((18, K), -2.0))
    with pytest.raises(AssertionError, match="each place once"):
        less.save(file)
    assert not file.exists()
    fill(file, work, 0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.safetensors"]
    found = map_arrays(file, SHARD_KINDS)
    for name, wanted in zip(("ids", "log_probs"), said_at(np.arange(19)), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


def test_lost_mass() -> None:
    lost = np.random.default_rng(0).uniform(0, 0.5, 50) ** 3
    log_probs = np.log(np.stack([0.7 * (1 - lost), 0.3 * (1 - lost)], axis=1))
    np.testing.assert_allclose(lost_mass(log_probs), lost, rtol=1e-5)
    # Of a whole distribution nothing is lost, whatever rounding leaves.
    assert (lost_mass(np.log(np.full((10, 4), 0.25)) + 1e-9) == 0).all()
