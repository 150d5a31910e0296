"""Rows of stored tensors; bases in 4 and 8 bit by their names and shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hftune.errors import ArgumentError, ManifestError
from hftune.merging import tensors
from hftune.merging.tensors import ComputedTensor, as_rows, dequantised, read_rows, read_source, read_tensor, scratch
from hftune.weight_files import StoredTensor
from tests.unit.merging.models import store

BITSANDBYTES = {"quantization_config": {"quant_method": "bitsandbytes"}, "dtype": "bfloat16"}


def test_any_rows_of_any_shape(tmp_path: Path) -> None:
    w, vector = torch.arange(24.0).view(2, 3, 4), torch.arange(5, dtype=torch.bfloat16)
    stored = store(tmp_path, {"w": w, "vector": vector})
    assert [as_rows(shape) for shape in ((2, 3, 4), (5,), ())] == [(6, 4), (5, 1), (1, 1)]
    assert torch.equal(read_rows(stored["w"], 2, 3), w.view(6, 4)[2:5])
    assert torch.equal(read_rows(stored["w"], 4), w.view(6, 4)[4:])
    assert torch.equal(read_rows(stored["vector"], 1, 2, reuse=True).flatten(), vector[1:3])
    assert torch.equal(read_tensor(stored["w"]), w)


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


def test_what_unpacks_a_tensor_is_no_tensor_of_the_model(tmp_path: Path) -> None:
    state = torch.tensor(list(json.dumps({"shape": [6, 4], "dtype": "bfloat16"}).encode()), dtype=torch.uint8)
    stored = store(
        tmp_path,
        {
            "layer.weight": torch.zeros(12, 1, dtype=torch.uint8),
            "layer.weight.absmax": torch.ones(1),
            "layer.weight.quant_state.bitsandbytes__nf4": state,
            "eight.weight": torch.zeros(2, 3, dtype=torch.int8),
            "eight.SCB": torch.ones(2),
            "eight.weight_format": torch.zeros(1, dtype=torch.uint8),
            "norm.weight": torch.ones(4),
        },
    )
    found = dequantised(stored, BITSANDBYTES, "base")
    assert {name: (one.dtype, one.shape) for name, one in found.items()} == {
        "layer.weight": ("BF16", (6, 4)),
        "eight.weight": ("BF16", (2, 3)),
        "norm.weight": ("F32", (4,)),
    }
    assert isinstance(found["norm.weight"], StoredTensor)
    assert dequantised(stored, {}, "base") == stored


@pytest.mark.parametrize("said", ['{"shape": [6, -4]}', '{"shape": [6, 1e9]}', '{"shape": 24}', "{}"])
def test_a_shape_that_is_none(said: str, tmp_path: Path) -> None:
    state = torch.tensor(list(said.encode()), dtype=torch.uint8)
    stored = store(
        tmp_path, {"w.weight": torch.zeros(12, 1, dtype=torch.uint8), f"w.weight.{tensors._QUANT_STATE}nf4": state}
    )
    with pytest.raises(ManifestError, match="has no shape"):
        dequantised(stored, BITSANDBYTES, "base")


def test_a_tensor_of_the_base_in_its_own_shape(tmp_path: Path) -> None:
    w = torch.randn(2, 6)
    stored = store(tmp_path, {"w": w})["w"]
    assert torch.equal(read_source(stored), w)
    computed = ComputedTensor(stored.file, "F32", (3, 4), lambda: read_tensor(stored).flatten() * 2)
    assert torch.equal(read_source(computed), (w * 2).view(3, 4))


def test_only_bitsandbytes_can_be_undone() -> None:
    with pytest.raises(ArgumentError, match="quantised by quanto"):
        dequantised({}, {"quantization_config": {"quant_method": "quanto"}}, "base")
