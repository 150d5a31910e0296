"""The bytes of safetensors files as torch tensors, whole or some rows of them; and bases in 4 or 8 bit, undone.

Files are read, not mapped: pages of a mapped file would count as memory of this process. Everything is on the CPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hftune.errors import ArgumentError, ManifestError
from hftune.models.loading.stored_quantisation import convert, describe, method_of, stored_quantisation
from hftune.opening.json_file import parse_json
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

_QUANT_STATE = "quant_state.bitsandbytes__"
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


# --- bases in 4 or 8 bit (bitsandbytes, arXiv:2305.14314) ------------------------------------------------------------


@dataclass(frozen=True)
class Quantisation:
    """How a QLoRA run quantised its base.

    Args:
        bits: 4 or 8.
        kind: nf4 or fp4.
        nested: The quantisation constants were quantised, too.
        compute: Dtype that the base was loaded in, which is also what its weights are dequantised to.
    """

    bits: int
    kind: str
    nested: bool
    compute: str


@dataclass(frozen=True)
class ComputedTensor:
    """A tensor of the base that is computed from stored ones when it is read.

    Args:
        file: Where what it is made from lies.
        dtype: As it would be stored.
        shape: Its shape.
        read: Its values, float32.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


Source = StoredTensor | ComputedTensor
"""A tensor of the base."""


def read_source(source: Source) -> Tensor:
    """A whole tensor of the base in its own shape."""
    return read_tensor(source) if isinstance(source, StoredTensor) else source.read().view(source.shape)


def requantised(stored: Source, how: Quantisation) -> ComputedTensor:
    """A tensor of a base that was loaded in 16 or 32 bit as training saw it: quantised and dequantised."""

    def read() -> Tensor:
        from bitsandbytes import functional

        weight = read_source(stored).to(DTYPES[how.compute])  # training loaded the base in this dtype, then quantised
        if how.bits == 8:
            # bitsandbytes quantises to int8 from float16 (nn.modules.Int8Params).
            values, scales, _ = functional.int8_vectorwise_quant(weight.to(torch.float16))
            return functional.int8_vectorwise_dequant(values, scales)
        packed, state = functional.quantize_4bit(
            weight.contiguous(), compress_statistics=how.nested, quant_type=how.kind
        )
        return functional.dequantize_4bit(packed, state).float()

    return ComputedTensor(stored.file, stored.dtype, stored.shape, read)


def _unpacked(stored: StoredTensor, state: dict[str, StoredTensor]) -> Tensor:
    """The values of a tensor that bitsandbytes has packed, float32."""
    from bitsandbytes import functional

    tensors = {name: read_tensor(tensor) for name, tensor in state.items()}
    packed = read_tensor(stored)
    if "SCB" in tensors:
        return functional.int8_vectorwise_dequant(packed, tensors["SCB"].float())
    found = functional.QuantState.from_dict(tensors, device=torch.device("cpu"))
    return functional.dequantize_4bit(packed, found).float()


def dequantised(tensors: dict[str, StoredTensor], config: dict[str, Any], folder: str) -> dict[str, Source]:
    """The tensors of a checkpoint as if it were not quantised.

    Raises:
        ArgumentError: Quantised in a way that cannot be undone.
    """
    how = stored_quantisation(config)
    if how is None:
        return dict(tensors)
    if method_of(how) != "bitsandbytes":
        raise ArgumentError(
            f"the base in {folder} is stored quantised by {describe(how)}, which cannot be undone",
            place="--base_model_name_or_path",
            fix=f"give the unquantised model that it was made from; or convert it: {convert(folder)}",
        )
    dtype = _whole_dtype(config)
    found: dict[str, Source] = {}
    for name, stored in tensors.items():
        state = _quant_state(name, tensors)
        if state:
            shape = _unpacked_shape(name, stored, state)
            found[name] = ComputedTensor(stored.file, dtype, shape, partial(_unpacked, stored, state))
        elif not _is_quant_state(name, tensors):
            found[name] = stored
    return found


def _whole_dtype(config: dict[str, Any]) -> str:
    """The dtype that packed weights get: the model's, as its config says."""
    said = [part.get(key) for part in (config, config.get("text_config") or {}) for key in ("dtype", "torch_dtype")]
    return NAMES[getattr(torch, str(next(filter(None, said), "bfloat16")).removeprefix("torch."))]


def _quant_state(name: str, tensors: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """What unpacks a quantised weight: `MODULE.SCB` in 8 bit, `MODULE.weight.absmax` and others in 4 bit."""
    # 4-bit values are packed as whatever dtype `bnb_4bit_quant_storage` says.
    if name.endswith(".weight") and tensors[name].dtype in ("U8", "I8", "BF16", "F16", "F32"):
        scale = f"{name.removesuffix('weight')}SCB"
        if scale in tensors:
            return {"SCB": tensors[scale]}
        return {key.removeprefix(f"{name}."): tensors[key] for key in tensors if key.startswith(f"{name}.")}
    return {}


def _is_quant_state(name: str, tensors: dict[str, StoredTensor]) -> bool:
    """Whether a tensor only unpacks another one."""
    module, inside, _ = name.rpartition(".weight.")
    return name.endswith((".SCB", ".weight_format")) or (bool(inside) and f"{module}.weight" in tensors)


def _unpacked_shape(name: str, stored: StoredTensor, state: dict[str, StoredTensor]) -> tuple[int, ...]:
    """The shape before packing, which 4-bit checkpoints keep as JSON in a tensor of bytes."""
    packed = next((tensor for key, tensor in state.items() if key.startswith(_QUANT_STATE)), None)
    if packed is None:
        return stored.shape
    content = bytes(read_tensor(packed).to(torch.uint8).flatten().tolist())
    shape = parse_json(content, f"{stored.file}: {name}").get("shape")
    # The file may come from anywhere: the sizes become those of a tensor.
    if not isinstance(shape, list) or not all(type(size) is int and 0 < size < 1 << 40 for size in shape):
        fix = "copy or download the checkpoint again"
        raise ManifestError(f"{stored.file}: {name} has no shape", place=str(stored.file), fix=fix)
    return tuple(shape)
