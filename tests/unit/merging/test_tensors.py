"""Rows of stored tensors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hftune.errors import ManifestError
from hftune.merging import tensors
from hftune.merging.tensors import as_rows, read_rows, read_tensor, scratch
from tests.unit.merging.models import store


def test_any_rows_of_any_shape(tmp_path: Path) -> None:
    w, vector = torch.arange(24.0).view(2, 3, 4), torch.arange(5, dtype=torch.bfloat16)
    stored = store(tmp_path, {"w": w, "vector": vector})
    assert [as_rows(shape) for shape in ((2, 3, 4), (5,), ())] == [(6, 4), (5, 1), (1, 1)]
    assert torch.equal(read_rows(stored["w"], 2, 3), w.view(6, 4)[2:5])
    assert torch.equal(read_rows(stored["w"], 4), w.view(6, 4)[4:])
    assert torch.equal(read_rows(stored["vector"], 1, 2, reuse=True).flatten(), vector[1:3])
    assert torch.equal(read_tensor(stored["w"]), w)
    # What is read anew stays as it is; what is not lies in the same memory each time.
    first, again = read_rows(stored["w"], 0, 2), read_rows(stored["w"], 0, 2, reuse=True)
    assert read_rows(stored["w"], 3, 2).data_ptr() != first.data_ptr() and torch.equal(first, again)
    assert read_rows(stored["w"], 4, 2, reuse=True).data_ptr() == again.data_ptr() and torch.equal(first, w[0, :2])


def test_a_read_may_give_less_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reads at most 2 GiB at once."""
    w = torch.randn(3, 4)
    stored = store(tmp_path, {"w": w})["w"]
    preadv = tensors.os.preadv
    monkeypatch.setattr(tensors.os, "preadv", lambda file, views, at: preadv(file, [views[0][:5]], at))
    assert torch.equal(read_tensor(stored), w)


def test_a_file_that_ends_too_early(tmp_path: Path) -> None:
    stored = store(tmp_path, {"w": torch.ones(4, 4)})["w"]
    with stored.file.open("r+b") as file:
        file.truncate(stored.start + 10)
    with pytest.raises(ManifestError, match=f"ends at byte {stored.start + 10}"):
        read_tensor(stored)


def test_scratch_is_used_again_for_its_purpose_only() -> None:
    first, other = scratch("one", 4, 4, torch.float32), scratch("two", 4, 4, torch.float32)
    assert scratch("one", 2, 4, torch.bfloat16).data_ptr() == first.data_ptr() != other.data_ptr()
    assert scratch("one", 8, 8, torch.float32).shape == (8, 8)


def test_files_are_opened_once_and_closed(tmp_path: Path) -> None:
    stored = store(tmp_path, {"w": torch.ones(2)})["w"]
    file = tensors.open_file(stored.file)
    assert tensors.open_file(stored.file) == file
    tensors.close_files()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    assert read_tensor(stored).tolist() == [1.0, 1.0]


def test_scratch_of_a_large_tensor_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the limit would stay in memory until the thread ends; what fits is kept to the last byte."""
    monkeypatch.setattr(tensors, "_SCRATCH_BYTES", 64)
    for rows, kept in ((4, True), (5, False)):
        purpose = f"of {rows}"
        made = scratch(purpose, rows, 4, torch.float32)
        assert (getattr(tensors._thread, purpose, None) is not None) == kept and made.shape == (rows, 4)
    assert scratch("of 4", 4, 4, torch.float32).data_ptr() == scratch("of 4", 4, 4, torch.float32).data_ptr()


def test_what_can_be_folded_into() -> None:
    """Every kind of float but those of eight bits, in which a step is larger than most updates."""
    assert {tensors.DTYPES[name] for name in tensors.FLOATS} == {
        dtype for dtype in tensors.DTYPES.values() if dtype.is_floating_point and dtype.itemsize > 1
    }
