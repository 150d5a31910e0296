"""The work of a data set and its shards: constant in memory, the same in any order of writing."""

from __future__ import annotations

import tracemalloc
from json import dumps as json_text
from pathlib import Path

import numpy as np
import pytest

from hftune.opening.safetensors_file import map_arrays, read_safetensors_header
from hftune.tools.teaching import shards
from hftune.tools.teaching.shards import LostMass, divide, is_whole, new_shard
from tests.unit.data.target_files import SMALL, K, conversations, fill

KINDS = {"ids": "I32", "log_probs": "F32"}


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
    with pytest.raises(KeyboardInterrupt), new_shard(file, 19, K):
        raise KeyboardInterrupt
    assert not file.exists()
    with pytest.raises(AssertionError, match="each place once"), new_shard(file, 19, K) as shard:
        shard.write(0, np.zeros((18, K)), np.full((18, K), -2.0))
    assert not file.exists()
    # What a killed process has left is in nobody's way.
    fill(file, work, 0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.safetensors"]
    assert map_arrays(file, KINDS)["ids"].shape == (19, K)


def test_a_shard_that_was_left_is_believed_to_the_byte_only(tmp_path: Path) -> None:
    file, whole = tmp_path / "one", tmp_path / "whole"
    with new_shard(whole, 19, K) as shard:
        shard.write(0, np.arange(19 * K).reshape(19, K), np.full((19, K), -2.0))
    assert is_whole(whole, 19, K) and not is_whole(whole, 18, K) and not is_whole(whole, 19, K + 1)
    content, header = whole.read_bytes(), read_safetensors_header(whole)
    places = [header.data, len(content) - 1, *(content.index(text) for text in (b"total", b"digest", b"I32"))]
    for place in places:
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert not is_whole(file, 19, K), place
    # Of other types, which have as many bytes; cut off; with a histogram of somebody else's; nothing; a link.
    for old, new in ((b'"F32"', b'"I32"'), (b"lost_mass", b"lost_mess"), (b"digest", b"dugest")):
        file.write_bytes(content.replace(old, new))
        assert not is_whole(file, 19, K), new
    for short in (b"", b"{}", content[:-1]):
        file.write_bytes(short)
        assert not is_whole(file, 19, K)
    file.unlink()
    assert not is_whole(file, 19, K)
    file.symlink_to(whole)
    assert not is_whole(file, 19, K)


@pytest.mark.parametrize("lost", ["[]", "{}", '{"tokens": 1, "total": 1, "counts": [[99999, 1]]}', "[" * 9000, "5"])
def test_a_histogram_of_somebody_elses(tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a digest that fits: nothing of it is taken."""
    monkeypatch.setattr(shards.json, "dumps", lambda value: lost if "counts" in value else json_text(value))
    with new_shard(tmp_path / "one", 2, K) as shard:
        shard.write(0, np.zeros((2, K)), np.full((2, K), -2.0))
    assert not is_whole(tmp_path / "one", 2, K)


def test_a_shard_is_written_in_constant_memory(tmp_path: Path) -> None:
    tokens, k = 2000, 1000  # 16 MB
    ids, log_probs = np.zeros((10, k), dtype=np.int64), np.full((10, k), -9.0, dtype=np.float32)
    tracemalloc.start()
    with new_shard(tmp_path / "one", tokens, k) as shard:
        for at in range(0, tokens, 10):
            shard.write(at, ids, log_probs)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_lost_mass() -> None:
    rng = np.random.default_rng(0)
    lost = rng.uniform(0, 0.5, 5000) ** 3
    log_probs = np.log(np.stack([0.7 * (1 - lost), 0.3 * (1 - lost)], axis=1))
    whole, first, second = LostMass(), LostMass(), LostMass()
    whole.add(log_probs)
    first.add(log_probs[3000:])
    second.add(log_probs[:3000])
    first.merge(second.to_dict())
    assert first.to_dict()["counts"] == whole.to_dict()["counts"]
    assert first.figures()["p99"] == whole.figures()["p99"] == pytest.approx(np.quantile(lost, 0.99), rel=0.02)
    assert whole.figures()["mean"] == pytest.approx(lost.mean()) == first.figures()["mean"]
    # Of a whole distribution nothing is lost; rounding may leave a little.
    all_of_it = LostMass()
    all_of_it.add(np.log(np.full((10, 4), 0.25)))
    assert all_of_it.figures() == {"mean": 0.0, "p99": 0.0} == LostMass().figures()


def test_the_header_has_room_for_every_step_of_the_histogram(tmp_path: Path) -> None:
    lost = np.repeat(10.0 ** np.linspace(-9, 0, 4000), 30)
    with new_shard(tmp_path / "one", len(lost), 1) as shard:
        shard.write(0, np.zeros((len(lost), 1)), np.log1p(-np.minimum(lost, 1 - 1e-12))[:, None])
    header = read_safetensors_header(tmp_path / "one")
    assert len(header.metadata["lost_mass"]) > 9000
