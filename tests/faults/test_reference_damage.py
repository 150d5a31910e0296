"""The reference's numbers that are kept between runs: damaged ones are computed again, never trained on."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from hftune.trainers.preference.reference_model import add_reference_columns
from hftune.user_cache import write_sealed

WANTED = torch.arange(50, dtype=torch.float64)
DATA = Dataset.from_dict({"a": list(range(50))})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    add_reference_columns(DATA, "the-key", lambda: {"ref": WANTED})
    (file,) = (tmp_path / "reference").iterdir()
    return file


def computed_again(file: Path, key: str = "the-key") -> bool:
    """Whether the numbers were computed; right they are in any case."""
    asked: list[int] = []
    found = add_reference_columns(DATA, key, lambda: asked.append(1) or {"ref": WANTED})
    assert found["ref"] == WANTED.tolist()
    return bool(asked)


def test_what_is_whole_is_used(kept: Path) -> None:
    assert not computed_again(kept) and [*kept.parent.iterdir()] == [kept]


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit(kept: Path, seed: int) -> None:
    content = bytearray(kept.read_bytes())
    bit = random.Random(seed).randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    kept.write_bytes(content)
    assert computed_again(kept)
    assert not computed_again(kept)


@pytest.mark.parametrize("length", [0, 1, 4, 30, 100, 400, 500, 900])
def test_a_file_that_is_cut(kept: Path, length: int) -> None:
    kept.write_bytes(kept.read_bytes()[:length])
    assert computed_again(kept) and not computed_again(kept)


def test_numbers_of_something_else(kept: Path) -> None:
    other = kept.with_name("other-key.sealed")
    kept.rename(other)
    assert computed_again(other, "other-key"), "of another key"
    content = io.BytesIO()
    np.savez(content, ref=np.zeros(49), key=np.array("other-key"))
    write_sealed("reference", other.name, content.getvalue())
    assert computed_again(other, "other-key"), "of another number of records"
    np.savez(other.with_suffix(".npz"), ref=np.array([None] * 50), key=np.array("other-key"))
    other.with_suffix(".npz").rename(other)
    assert computed_again(other, "other-key"), "a pickle, and no seal"
