"""Headers of safetensors files, checked by the format's own library; their indexes; tensors read whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from hftune.errors import ManifestError, shown
from hftune.opening.files import open_regular
from hftune.opening.json_file import parse_json, read_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_FIX = "copy or download it again"
_LENGTH = 8  # bytes before the header, which say how long it is


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
        ManifestError: It is damaged, or no file of the format.
    """
    # The library checks all of the format: lengths, dtypes, shapes, offsets without holes or overlaps, the file's end.
    with open_tensors(file, framework="np"), open_regular(file) as stream:
        length = int.from_bytes(stream.read(_LENGTH), "little")
        header = parse_json(stream.read(length), str(file), fix=_FIX)
    metadata = header.pop("__metadata__", None) or {}
    tensors = dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"]))
    return Header(tensors, metadata, _LENGTH + length)


def read_index(file: str | Path) -> dict[str, str]:
    """Tensor name to file name of a `model.safetensors.index.json`.

    Raises:
        ManifestError: It is none, or names files that are not plain names in its own folder.
    """
    found = read_json(file, fix=_FIX).get("weight_map")
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
def open_tensors(file: str | Path, framework: str = "pt") -> Iterator[Any]:
    """The file as `safetensors.safe_open`, for torch unless told otherwise; its faults become hftune's one message."""
    from safetensors import SafetensorError, safe_open

    open_regular(file).close()  # a pipe would wait for a writer
    try:
        opened = safe_open(file, framework=framework)
        stored = opened.__enter__()
        try:
            yield stored
        finally:
            # After an error threads of transformers may still read ("Already borrowed"): the error is what counts, and
            # the file is closed with its last reader.
            with suppress(RuntimeError):
                opened.__exit__(None, None, None)
    except SafetensorError as problem:
        raise ManifestError(f"{file} cannot be read: {shown(problem, 200)}", place=str(file), fix=_FIX) from problem


def load_tensor(file: str | Path, name: str) -> Tensor:
    """One tensor of a file."""
    with open_tensors(file) as stored:
        return cast("Tensor", stored.get_tensor(name))


def load_tensors(file: str | Path) -> dict[str, Tensor]:
    """All tensors of a file, in memory.

    Raises:
        ManifestError: It is damaged.
    """
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
