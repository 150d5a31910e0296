"""Headers of safetensors files, checked against the whole format; their indexes; tensors read whole.

The rules are those of the format's own library (https://github.com/huggingface/safetensors#format), which tells faults
by an exception of its own without the file's name.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from hftune.errors import ManifestError, shown
from hftune.opening.files import check_memory, open_regular
from hftune.opening.json_file import parse_json, read_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

HEADER_LIMIT = 100_000_000
"""Bytes of a header, as the format's library has it."""

BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Of an element of each dtype that the format has."""

_LENGTH = struct.Struct("<Q")
_MOST = 1 << 63  # bytes, and elements of a dimension
# torch computes with at most 64 dimensions; a longer shape or name is no model's.
_DIMENSIONS = 64
_NAME = 4096
_FIX = "copy or download it again"


@dataclass(frozen=True)
class Header:
    """The header of a file.

    Attributes:
        tensors: Name to dtype, shape and data_offsets, in the order of their bytes.
        metadata: Texts by name.
        data: Where the tensors begin in the file; data_offsets count from there.
    """

    tensors: dict[str, dict[str, Any]]
    metadata: dict[str, str]
    data: int


def read_safetensors_header(file: str | Path) -> Header:
    """The header of a file, with offsets, shapes, dtypes and the size of the file checked.

    Raises:
        ManifestError: Something does not.
    """
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        first = stream.read(_LENGTH.size)
        length = _LENGTH.unpack(first)[0] if len(first) == _LENGTH.size else 0
        # Before the header is read: the length may be anything up to 2**64.
        if length > HEADER_LIMIT:
            _refuse(file, f"its header has {length} bytes, and the format allows {HEADER_LIMIT}")
        if length < 2 or _LENGTH.size + length > size:
            _refuse(file, f"it is cut off: the header of {length} bytes is not all there ({size} bytes)")
        text = stream.read(length)
    # The format says so; a parser would take white space before it.
    if not text.startswith(b"{"):
        _refuse(file, "its header does not begin with a brace")
    header = parse_json(text, str(file), fix=_FIX)
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(file, "its metadata are not texts by name")
    tensors = _in_order(file, header)
    end = _LENGTH.size + length + (next(reversed(tensors.values()))["data_offsets"][1] if tensors else 0)
    if end != size:
        what = "is cut off" if end > size else "has bytes that belong to no tensor"
        _refuse(
            file, f"it {what}: {shown(next(reversed(tensors), 'the header'))} ends at byte {end}, the file at {size}"
        )
    return Header(tensors, metadata, _LENGTH.size + length)


def _in_order(file: str | Path, header: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries by their offsets, each checked, without holes and overlaps."""
    for name, entry in header.items():
        fault = _fault_of(entry) or (f"the name has {len(name)} characters" if len(name) > _NAME else None)
        if fault:
            _refuse(file, f"{shown(ascii(name))}: {fault}")
    # Without holes and overlaps no byte belongs to two tensors or to none, where something could be hidden.
    at = 0
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    for name, entry in entries:
        begin, end = entry["data_offsets"]
        if begin != at:
            _refuse(
                file, f"{shown(ascii(name))} begins at byte {begin} of the data, and the tensor before ends at {at}"
            )
        at = end
    return dict(entries)


def _fault_of(entry: Any) -> str | None:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return "it has not just dtype, shape and data_offsets"
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in BITS:
        return f"its dtype is {shown(ascii(entry['dtype']))}"
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_counts(shape) or len(shape) > _DIMENSIONS:
        return f"its shape is {shown(ascii(shape))}"
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"its data_offsets are {shown(ascii(offsets))}"
    # In bits: elements of 4 and 6 bits fill bytes only together.
    bits = math.prod(shape) * BITS[entry["dtype"]]
    if bits != 8 * (offsets[1] - offsets[0]):
        held = offsets[1] - offsets[0]
        return f"{entry['dtype']} of shape {shown(shape)} has {bits / 8:g} bytes, its data_offsets leave {held}"
    return None


def _are_counts(values: Any) -> bool:
    # `type`, since True is an int to isinstance.
    return isinstance(values, list) and all(type(value) is int and 0 <= value < _MOST for value in values)


def read_index(file: str | Path) -> dict[str, str]:
    """Tensor name to file name of a `model.safetensors.index.json`.

    Raises:
        ManifestError: It is none, or names files that are not plain names in its own folder.
    """
    found = read_json(file, finite=False, fix=_FIX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ManifestError(f"{file} has no weight_map of file names", place=str(file), fix=_FIX)
    for name in dict.fromkeys(found.values()):
        if not is_plain_name(name):
            raise ManifestError(
                f"{file} names {shown(ascii(name))}, which is no file next to it",
                place=str(file),
                fix="take the model from where it was published; an index names files of its own folder",
            )
    return found


def is_plain_name(name: str) -> bool:
    """Whether a text names something in a folder itself: no path, no way up, nothing that cannot be shown."""
    return bool(name) and name not in (".", "..") and not set("/\\\0") & set(name) and name.isprintable()


@contextmanager
def open_tensors(file: str | Path) -> Iterator[Any]:
    """The file as `safetensors.safe_open` for torch; its faults become hftune's one message."""
    from safetensors import SafetensorError, safe_open

    open_regular(file).close()  # a pipe would wait for a writer
    try:
        opened = safe_open(file, framework="pt")
        stored = opened.__enter__()
        try:
            yield stored
        finally:
            # After an error threads of transformers may still read ("Already borrowed"): the error is what counts, and
            # the file is closed with its last reader.
            with suppress(RuntimeError):
                opened.__exit__(None, None, None)
    except SafetensorError as problem:
        raise ManifestError(f"{file} cannot be read: {problem}", place=str(file), fix=_FIX) from problem


def load_tensor(file: str | Path, name: str) -> Tensor:
    """One tensor of a file."""
    with open_tensors(file) as stored:
        return cast("Tensor", stored.get_tensor(name))


def load_tensors(file: str | Path) -> dict[str, Tensor]:
    """All tensors of a file, in memory.

    Raises:
        ManifestError: It is damaged, or larger than the free memory.
    """
    # With a message of its own for each fault, before the library's single exception.
    read_safetensors_header(file)
    check_memory(file)
    with open_tensors(file) as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no dict


def map_arrays(file: str | Path, kinds: dict[str, str]) -> dict[str, np.ndarray]:
    """The tensors of a file as read-only NumPy arrays of two dimensions or one, memory-mapped.

    Args:
        kinds: The dtype (of the format) of each tensor that the file has to hold, and no other.

    Raises:
        ManifestError: It holds others, or is damaged.
    """
    import numpy as np

    header = read_safetensors_header(file)
    found = {name: str(entry["dtype"]) for name, entry in header.tensors.items()}
    if found != kinds:
        _refuse(file, f"it holds {shown(found)}, not {kinds}")
    arrays = {}
    for name, entry in header.tensors.items():
        kind = np.dtype(_NUMPY[found[name]])
        offset, shape = header.data + entry["data_offsets"][0], tuple(entry["shape"])
        # Nothing cannot be mapped.
        empty = math.prod(shape) == 0
        arrays[name] = np.zeros(shape, kind) if empty else np.memmap(file, kind, "r", offset, shape)
    return arrays


_NUMPY = {"I32": "<i4", "I64": "<i8", "U64": "<u8", "F32": "<f4"}
"""Of the dtypes that are mapped."""


def _refuse(file: str | Path, cause: str) -> NoReturn:
    raise ManifestError(f"{file}: {cause}", place=str(file), fix=_FIX)
