"""Names, shapes and fingerprints of weights on disk, read from headers alone."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

_SAMPLE_BYTES = 1 << 16


def weight_files(folder: str | Path) -> list[Path]:
    """The safetensors files of a local folder, sorted; none for a Hub name or another format."""
    path = Path(folder)
    return sorted(path.glob("*.safetensors")) if path.is_dir() else []


def read_header(file: Path) -> dict[str, dict]:
    """The header of a safetensors file: tensor name to dtype, shape and offsets."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header


def weight_shapes(folder: str | Path | None) -> dict[str, tuple[int, ...]]:
    """Tensor name to shape over all safetensors of a folder; empty where there are none."""
    files = weight_files(folder) if folder else []
    return {name: tuple(entry["shape"]) for file in files for name, entry in read_header(file).items()}


def fingerprint(folder: str | Path) -> str:
    """Sixteen hex digits that change when the weights or the architecture do.

    Reads each file's header, size and 64 KiB at its start, middle and end, so that a 70B model takes milliseconds. A
    Hub name is its own fingerprint.
    """
    path = Path(folder)
    if not path.is_dir():
        return f"hub:{folder}"
    digest = hashlib.sha256()
    for file in weight_files(path) or sorted(path.glob("*.gguf")) or sorted(path.glob("*.bin")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
                stream.seek(start)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
