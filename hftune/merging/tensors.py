"""The bytes of safetensors files as torch tensors, whole or some rows of them.

Files are read, not mapped: pages of a mapped file would count as memory of this process. Everything is on the CPU.
"""

from __future__ import annotations

import os
import threading
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

_SCRATCH_BYTES = 1 << 24
_thread = threading.local()
_open: dict[Path, int] = {}


# --- rows of a stored tensor -----------------------------------------------------------------------------------------


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype].itemsize


def as_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns under which a tensor is folded: a vector is one column, experts lie one below the other."""
    if len(shape) < 2:
        return prod(shape), 1
    return prod(shape[:-1]), shape[-1]


def open_file(file: Path) -> int:
    """An open descriptor of a file for `os.pread`, which threads can share."""
    # Two threads may both open it at first; one descriptor is then open until the process ends.
    if file not in _open:
        _open[file] = os.open(file, os.O_RDONLY)
    return _open[file]


def close_files() -> None:
    """Close what `open_file` keeps open."""
    for file in list(_open):
        os.close(_open.pop(file))


def scratch(purpose: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """An uninitialised (rows, columns) tensor whose memory this thread uses again for the same `purpose`."""
    nbytes = rows * columns * dtype.itemsize
    # A block of some megabytes would otherwise be fresh pages from the kernel each time, zeroed one by one. What is
    # larger (a tensor that has to be seen whole) is not kept: it would stay in memory until the thread ends.
    if nbytes > _SCRATCH_BYTES:
        return torch.empty((rows, columns), dtype=dtype)
    kept: Tensor | None = getattr(_thread, purpose, None)
    if kept is None or kept.numel() < nbytes:
        kept = torch.empty(nbytes, dtype=torch.uint8)
        setattr(_thread, purpose, kept)
    return kept[:nbytes].view(dtype).view(rows, columns)


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not a copy."""
    # NumPy has no bfloat16 and no float8: it is given bytes.
    array: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(array)


def read_rows(stored: StoredTensor, start: int = 0, rows: int | None = None, *, reuse: bool = False) -> Tensor:
    """Rows of a tensor as (rows, columns), in its own dtype.

    Args:
        stored: The tensor.
        start: The first row.
        rows: How many; None: all that follow.
        reuse: Read into scratch memory: the result is valid until this thread reads the next rows.

    Raises:
        ManifestError: The file ends before.
    """
    all_rows, columns = as_rows(stored.shape)
    rows = all_rows - start if rows is None else rows
    dtype = DTYPES[stored.dtype]
    found = scratch("read", rows, columns, dtype) if reuse else torch.empty((rows, columns), dtype=dtype)
    view, done = raw(found), 0
    first = stored.start + start * columns * itemsize(stored.dtype)
    while done < len(view):  # Linux reads 2 GiB at most in one call
        got = os.preadv(open_file(stored.file), [view[done:]], first + done)
        if not got:
            raise ManifestError(
                f"{stored.file} ends at byte {first + done}", place=str(stored.file), fix="copy it again"
            )
        done += got
    return found


def read_tensor(stored: StoredTensor) -> Tensor:
    """A whole tensor in its own shape and dtype."""
    return read_rows(stored).view(stored.shape)
