"""Rows of stored tensors; bases in 4 and 8 bit by their names and shapes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.errors import ArgumentError, ManifestError
from hftune.merging import tensors
from hftune.merging.tensors import (
    ComputedTensor,
    Quantisation,
    as_rows,
    dequantised,
    read_rows,
    read_source,
    read_tensor,
    requantised,
    scratch,
)
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


@pytest.mark.parametrize("dtype", ["U8", "I8", "BF16", "F16", "F32"])
def test_four_bits_are_packed_as_any_dtype(dtype: str, tmp_path: Path) -> None:
    """As `bnb_4bit_quant_storage` said; sizes from 1 on, and below 2 to the 40."""
    shape = [1, (1 << 40) - 1]
    state = torch.tensor(list(json.dumps({"shape": shape}).encode()), dtype=torch.uint8)
    name = "a.weight.b.weight"  # of a module that is in one of such a name
    packed = {name: torch.zeros(2, 1, dtype=tensors.DTYPES[dtype]), f"{name}.absmax": torch.ones(1)}
    stored = store(tmp_path, packed | {f"{name}.{tensors._QUANT_STATE}nf4": state})
    found = dequantised(stored, BITSANDBYTES, "base")
    assert {name: one.shape for name, one in found.items()} == {name: tuple(shape)}


def test_names_that_only_look_like_what_unpacks_a_tensor(tmp_path: Path) -> None:
    """Without the weight that they would unpack, and of a module whose name is much like it."""
    names = ("a.weight.absmax", "b.weights.x", "b.weight", "c.SCB.bias")
    found = dequantised(store(tmp_path, {name: torch.ones(1) for name in names}), BITSANDBYTES, "base")
    assert set(found) == set(names)


@pytest.mark.parametrize(
    "said",
    [
        *('{"shape": [6, -4]}', '{"shape": [6, 0]}', '{"shape": [6, 1e9]}', f'{{"shape": [6, {1 << 40}]}}'),
        *('{"shape": 24}', "{}"),
    ],
)
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


@pytest.mark.parametrize(("kind", "nested"), [("nf4", True), ("nf4", False), ("fp4", False)])
def test_a_base_as_four_bits_left_it(kind: str, nested: bool, tmp_path: Path) -> None:
    """What bitsandbytes makes of the weight in training's dtype, which each of the settings makes another."""
    from bitsandbytes import functional

    w = torch.randn(8, 64)
    stored = store(tmp_path, {"w": w})["w"]
    found = requantised(stored, Quantisation(4, kind, nested, "F16"))
    assert (found.file, found.dtype, found.shape) == (stored.file, "F32", (8, 64))
    options = {"compress_statistics": nested, "quant_type": kind}
    wanted = functional.dequantize_4bit(*functional.quantize_4bit(w.half(), **options))
    assert found.read().dtype == torch.float32 and torch.equal(found.read(), wanted.float())
    others = [("nf4", True), ("nf4", False), ("fp4", False)]
    for other in others:
        if other != (kind, nested):
            assert not torch.equal(requantised(stored, Quantisation(4, *other, "F16")).read(), found.read())


def test_a_base_as_eight_bits_left_it(tmp_path: Path) -> None:
    """Each row in 127 steps to its largest number: 127 of 127 and 31.6 of 127 become 1 and 32 / 127."""
    stored = store(tmp_path, {"w": torch.tensor([[1.0, 31.6 / 127], [2.0, -1.0]])})["w"]
    found = requantised(stored, Quantisation(8, "None", False, "F32")).read()
    torch.testing.assert_close(found.float(), torch.tensor([[1.0, 32 / 127], [2.0, -128 / 127]]), atol=1e-3, rtol=0)


def test_a_tensor_unpacked_by_what_lies_beside_it(tmp_path: Path) -> None:
    """8 bit by the scales of rows over 127; 4 bit by bitsandbytes' own state, in float32 both."""
    from bitsandbytes import functional

    w = torch.randn(4, 64)
    packed, state = functional.quantize_4bit(w, quant_type="fp4")
    state_tensors = {f"four.weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    rows = torch.tensor([[127, -64], [1, 127]], dtype=torch.int8)
    eight = {"eight.weight": rows, "eight.SCB": torch.tensor([2.0, 1.0])}
    stored = store(tmp_path, {"four.weight": packed} | state_tensors | eight)
    found = dequantised(stored, BITSANDBYTES, "base")
    assert set(found) == {"four.weight", "eight.weight"}
    assert torch.equal(read_source(found["four.weight"]), functional.dequantize_4bit(packed, state).float())
    wanted = torch.tensor([[2.0, -128 / 127], [1 / 127, 1.0]])
    torch.testing.assert_close(read_source(found["eight.weight"]).float(), wanted)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "float16"}, "F16"),
        ({"torch_dtype": "torch.float32"}, "F32"),
        ({"text_config": {"dtype": "float32"}}, "F32"),
        ({"dtype": None, "text_config": {"torch_dtype": "float16"}}, "F16"),
        ({}, "BF16"),
    ],
)
def test_the_dtype_that_packed_weights_get(config: dict[str, Any], dtype: str) -> None:
    assert tensors._whole_dtype(config) == dtype


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
