"""Tensors of safetensors files, read and written one at a time: memory does not depend on the size of a model."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hftune.errors import ManifestError
from hftune.weight_files import StoredTensor

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The safetensors format's names of dtypes."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = ("F64", "F32", "F16", "BF16")
"""What is cast when another dtype is asked for, and what can be folded into."""


def read_tensor(stored: StoredTensor) -> Tensor:
    """A tensor in its own shape and dtype. The file is read, not mapped: mapped pages would count as memory.

    Raises:
        ManifestError: The file ends before.
    """
    (found,) = read_pieces(stored, stored.nbytes)
    return found.view(stored.shape)


def read_pieces(stored: StoredTensor, size: int = 1 << 24) -> Iterator[Tensor]:
    """Its values in their order, without its shape, so many bytes at a time.

    Raises:
        ManifestError: The file ends before.
    """
    with stored.file.open("rb") as file:
        file.seek(stored.start)
        for start in range(0, max(stored.nbytes, 1), max(size, 1)):
            found = torch.empty(min(size, stored.nbytes - start), dtype=torch.uint8)
            if file.readinto(raw(found)) != found.nbytes:
                raise ManifestError(f"{stored.file} ends too early", place=str(stored.file), fix="copy it again")
            yield found.view(DTYPES[stored.dtype])


def write_tensors(
    path: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]], values_of: Callable[[str], Iterable[Tensor]]
) -> None:
    """A safetensors file, durably: its header, then one tensor after the other.

    Args:
        path: A file that is not there yet.
        tensors: Name, dtype as the format names it, and shape, in the order of their bytes.
        values_of: Gives a tensor by its name, whole or in pieces.

    Raises:
        FileExistsError: Something has that name.
    """
    tensors = list(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, dtype, shape in tensors:
        end = start + nbytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format's own padding: tensors start at a multiple of 8
    # Not through a file or link that somebody else has put into the new folder.
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, shape in tensors:
            left = nbytes(dtype, shape)
            for value in values_of(name):
                left -= value.nbytes
                assert value.dtype == DTYPES[dtype] and left >= 0, f"{name} is not what was planned"
                file.write(raw(value.contiguous()))
            assert not left, f"{name} is not what was planned"
        file.flush()
        os.fsync(file.fileno())


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return prod(shape) * DTYPES[dtype].itemsize


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not a copy."""
    # NumPy has no bfloat16 and no float8: it is given bytes.
    array: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(array)
