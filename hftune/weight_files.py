"""Names, shapes and fingerprints of weights on disk, read from headers alone."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hftune.errors import ArgumentError, ManifestError
from hftune.opening.files import unsafe_entry
from hftune.opening.safetensors_file import read_index, read_safetensors_header

WEIGHTS_NAME, INDEX_NAME = "model.safetensors", "model.safetensors.index.json"
# Read at three places of each file: enough to tell two trainings apart, and milliseconds for 70B parameters.
_SAMPLE_BYTES = 1 << 16
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class StoredTensor:
    """Where the bytes of a tensor lie.

    Args:
        file: A safetensors file.
        dtype: As the format names it: F32, BF16, U8, ...
        shape: Its shape.
        start: First byte in the file, the header counted.
        nbytes: Number of bytes.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter."""
    return any(os.path.isfile(folder / name) for name in ("config.json", "adapter_config.json"))


def weight_files(folder: str | Path) -> list[Path]:
    """The safetensors files of a local folder, sorted; none for a Hub name or another format.

    Where an index or a `model.safetensors` says which files are the model, other ones next to them (an adapter, weights
    in the format of another tool) are none of it.

    Raises:
        ManifestError: The index is damaged, names what is not there, or a file is a link that leads out of the folder.
    """
    path = Path(folder)
    if (path / INDEX_NAME).is_file():
        # The index decides: what lies next to it may be an adapter or another tool's copy.
        found = [path / name for name in sorted(set(read_index(path / INDEX_NAME).values()))]
        _check_all_there(path, found)
    elif (path / WEIGHTS_NAME).is_file():
        found = [path / WEIGHTS_NAME]
    else:
        found = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    for problem in (unsafe_entry(file, path) for file in found):
        if problem is not None:
            raise problem
    return found


def stored_tensors(folder: str | Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder's safetensors, file by file in the order of their bytes.

    Raises:
        ManifestError: A shard that the index names is missing, or a file is not what its header says.
    """
    return {name: tensor for file in weight_files(folder) for name, tensor in file_tensors(file).items()}


def file_tensors(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file in the order of their bytes.

    Raises:
        ManifestError: The file is not what its header says.
    """
    header, found = read_safetensors_header(file), {}
    for name, entry in header.tensors.items():
        start, end = entry["data_offsets"]
        found[name] = StoredTensor(file, entry["dtype"], tuple(entry["shape"]), header.data + start, end - start)
    return found


def _check_all_there(folder: Path, files: list[Path]) -> None:
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ManifestError(
            f"{folder} lacks {', '.join(missing)}, which its index names",
            place=str(folder / INDEX_NAME),
            fix="copy or download the model again",
        )


def parse_size(text: str) -> int:
    """`5GB`, `500MB` or `2GiB` in bytes.

    Raises:
        ArgumentError: Something else.
    """
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.upper().endswith(unit)), None)
    number = text[: -len(unit)].strip() if unit else text
    if not re.fullmatch("[0-9]{1,15}", number) or not int(number):
        raise ArgumentError(f"{text!r} is no size", place="--max_shard_size", fix="write 5GB, 500MB or 2GiB")
    return int(number) * (_UNITS[unit] if unit else 1)


def weight_shapes(folder: str | Path | None) -> dict[str, tuple[int, ...]]:
    """Tensor name to shape over all safetensors of a folder; empty where there are none."""
    return {name: tensor.shape for name, tensor in stored_tensors(folder).items()} if folder else {}


def fingerprint(folder: str | Path) -> str:
    """Sixteen hex digits that change when the weights or the architecture do.

    Reads each file's header, size and 64 KiB at its start, middle and end, so that a 70B model takes milliseconds. A
    Hub name is its own fingerprint.
    """
    path = Path(folder)
    if not path.is_dir():
        return f"hub:{folder}"
    digest = hashlib.sha256()
    # GGUF and pickled weights have no header that is read here, their bytes are sampled all the same.
    for file in weight_files(path) or sorted(path.glob("*.gguf")) or sorted(path.glob("*.bin")):
        size = file.stat().st_size
        # Names and sizes too: the samples of two shards may be equal where weights are zero.
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
                stream.seek(start)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
