"""Bytes of safetensors files as torch tensors, whole or some rows of them, without mapping the files into memory."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

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
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The format's names of dtypes."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = ("F64", "F32", "F16", "BF16")
"""What is cast when another dtype is asked for, and what can be folded into."""


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype].itemsize


def as_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns under which a tensor is folded: a vector is one column, experts lie one below the other."""
    if len(shape) < 2:
        return prod(shape), 1
    return prod(shape[:-1]), shape[-1]


def close_files() -> None:
    """Close what `read_rows` keeps open."""
    for file in list(_open):
        os.close(_open.pop(file))


_open: dict[Path, int] = {}


def descriptor(file: Path) -> int:
    """An open descriptor of a file for `os.pread`, which threads can share."""
    if file not in _open:
        _open[file] = os.open(file, os.O_RDONLY)
    return _open[file]


def read_bytes(file: Path, start: int, nbytes: int) -> bytearray:
    """`nbytes` of a file from `start` on.

    Raises:
        ManifestError: The file ends before.
    """
    buffer = bytearray(nbytes)
    view, done = memoryview(buffer), 0
    while done < nbytes:
        got = os.preadv(descriptor(file), [view[done:]], start + done)
        if not got:
            raise ManifestError(f"{file} ends at byte {start + done}", place=str(file), fix="copy it again")
        done += got
    return buffer


def read_rows(stored: StoredTensor, start: int = 0, rows: int | None = None) -> Tensor:
    """Rows of a tensor as (rows, columns), in its own dtype."""
    all_rows, columns = as_rows(stored.shape)
    rows = all_rows - start if rows is None else rows
    width = columns * itemsize(stored.dtype)
    if not rows * columns:
        return torch.empty((rows, columns), dtype=DTYPES[stored.dtype])
    buffer = read_bytes(stored.file, stored.start + start * width, rows * width)
    return torch.frombuffer(buffer, dtype=DTYPES[stored.dtype]).view(rows, columns)


def read_tensor(stored: StoredTensor) -> Tensor:
    """A whole tensor in its own shape and dtype."""
    return read_rows(stored).view(stored.shape)
