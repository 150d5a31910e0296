"""Targets that `hftune teach` has computed: opened without trusting them, read memory-mapped.

A folder holds `index.safetensors` (hashes of records, ascending, and the place of each one's first trained token) and
shards `targets-00000.safetensors`, ... (of each place the ids of the teacher's k most likely tokens, and their
log-probabilities). Its manifest says of which teacher, at which temperature, over which vocabulary.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from hftune.constants import MANIFEST_NAME
from hftune.errors import ManifestError, shown
from hftune.opening.files import unsafe_entry
from hftune.opening.model_files import read_checked
from hftune.opening.safetensors_file import map_arrays, read_safetensors_header

INDEX = "index.safetensors"
INDEX_KINDS = {"hashes": "U64", "places": "I64"}
SHARD_KINDS = {"ids": "I32", "log_probs": "F32"}
ABOUT = "targets"
"""The key of the manifest."""

FLAG = "--teacher_targets"
_FIX = "copy the folder again, or make it again with: hftune teach ... --output_dir FOLDER"
# What must be in the manifest, and of which type.
_FIELDS = {
    "k": int,
    "temperature": float,
    "vocabulary": int,
    "tokens": int,
    "shards": int,
    "records": int,
    "tokenizer": str,
    "teacher": dict,
}
# Shards that are open: each holds a handle, of which a process may have 1024.
_OPEN = 128
# Rounding: a log-probability may be a little above 0.
_ABOVE = 1e-3


def shard_name(number: int) -> str:
    """The file of a shard."""
    return f"targets-{number:05d}.safetensors"


class StoredTargets:
    """The targets of a folder.

    Attributes:
        about: What the manifest says of them: k, temperature, vocabulary (tokens that the distributions are over),
            tokens, shards, records, tokenizer (a digest), teacher (name and fingerprint).

    Raises:
        ManifestError: It is no such folder, not finished, or damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.about = _about(self.folder)
        self.k, self.tokens = int(self.about["k"]), int(self.about["tokens"])
        index = map_arrays(self._file(INDEX), INDEX_KINDS)
        self.hashes, self.places = np.asarray(index["hashes"]), np.asarray(index["places"])
        self._check_index()
        sizes = [self._rows_of(number) for number in range(self.about["shards"])]
        self.starts = np.cumsum([0, *sizes])
        if self.starts[-1] != self.tokens:
            self._refuse(f"its shards hold {self.starts[-1]} tokens, its manifest says {self.tokens}")
        # One structure of both halves: NumPy searches in one dimension.
        self.keys = _as_keys(self.hashes)
        self.shard = functools.lru_cache(_OPEN)(self._shard)

    def places_of(self, hashes: np.ndarray) -> np.ndarray:
        """The place of the first trained token of each record, (records,) int64; -1 for one that is not there.

        Args:
            hashes: (records, 2) uint64, from `hashes_of`.
        """
        if not len(self.keys):
            return np.full(len(hashes), -1)
        wanted = _as_keys(hashes)
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[at] == wanted, self.places[at], -1)

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the teacher says of tokens by their places.

        Args:
            rows: (tokens,) int64; -1 for a token of which nothing is known.

        Returns:
            (tokens, k) int64 ids, -1 where nothing is known, and (tokens, k) float32 log-probabilities; on the CPU.

        Raises:
            ManifestError: What is stored is damaged.
        """
        at = rows.cpu().numpy()
        ids = np.full((len(at), self.k), -1, dtype=np.int64)
        log_probs = np.zeros((len(at), self.k), dtype=np.float32)
        if len(at) and not -1 <= at.min() <= at.max() < self.tokens:
            self._refuse("a record leads to a place that it does not have")
        of = np.searchsorted(self.starts, at, side="right") - 1
        for number in np.unique(of[at >= 0]).tolist():
            here = of == number
            arrays = self.shard(number)
            ids[here] = arrays["ids"][at[here] - self.starts[number]]
            log_probs[here] = arrays["log_probs"][at[here] - self.starts[number]]
        self._check_values(ids[at >= 0], log_probs[at >= 0])
        return torch.from_numpy(ids), torch.from_numpy(log_probs)

    def _check_values(self, ids: np.ndarray, log_probs: np.ndarray) -> None:
        if not len(ids):
            return
        # Read for the first time now; a look at all of them beforehand would read the whole folder.
        if ids.min() < 0 or ids.max() >= self.about["vocabulary"]:
            self._refuse(f"it holds token ids from {ids.min()} to {ids.max()} of {self.about['vocabulary']}")
        if not (np.isfinite(log_probs).all() and log_probs.max() <= _ABOVE):
            self._refuse("it holds log-probabilities that are none")
        if (np.exp(log_probs.astype(np.float64)).sum(axis=1) > 1 + _ABOVE).any():
            self._refuse("it holds probabilities that sum to more than 1")

    def _check_index(self) -> None:
        number = self.about["records"]
        if self.hashes.shape != (number, 2) or self.places.shape != (number,):
            self._refuse(f"its index has {shown(self.hashes.shape)} hashes, its manifest says {number}")
        if number and not 0 <= self.places.min() <= self.places.max() < self.tokens:
            self._refuse("its index leads to places that it does not have")
        keys = _as_keys(self.hashes)
        if (keys[:-1] >= keys[1:]).any():
            self._refuse("its index is not in ascending order")

    def _rows_of(self, number: int) -> int:
        """Tokens of a shard, by its header alone."""
        file = self._file(shard_name(number))
        tensors = read_safetensors_header(file).tensors
        shapes = {name: entry["shape"] for name, entry in tensors.items()}
        kinds = {name: entry["dtype"] for name, entry in tensors.items()}
        rows = next(iter(shapes.values()))[0] if shapes else 0
        if kinds != SHARD_KINDS or any(shape != [rows, self.k] for shape in shapes.values()):
            self._refuse(f"{file.name} holds {shown(shapes)} of {shown(kinds)}, not {self.k} targets a token")
        return int(rows)

    def _shard(self, number: int) -> dict[str, np.ndarray]:
        return map_arrays(self._file(shard_name(number)), SHARD_KINDS)

    def _file(self, name: str) -> Path:
        problem = unsafe_entry(self.folder / name, self.folder)
        if problem is not None:
            raise problem
        return self.folder / name

    def _refuse(self, cause: str) -> NoReturn:
        raise ManifestError(f"the targets in {self.folder} are damaged: {cause}", place=FLAG, fix=_FIX)


def _as_keys(hashes: np.ndarray) -> np.ndarray:
    """(records,) of both halves, in the order of the numbers that they make."""
    # Big-endian bytes compare as numbers do.
    return np.ascontiguousarray(hashes, dtype=">u8").view("S16").reshape(-1)


def _about(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST_NAME
    if not file.is_file():
        cause = f"{folder} holds no targets of a teacher (no {MANIFEST_NAME})"
        raise ManifestError(cause, place=FLAG, fix="make it with: hftune teach ... --output_dir FOLDER")
    manifest = read_checked(file, fix=_FIX)
    about = manifest.get(ABOUT)
    if manifest.get("stage") != "teach" or manifest.get("status") != "complete" or not isinstance(about, dict):
        cause = f"{folder} is no finished result of hftune teach"
        raise ManifestError(cause, place=FLAG, fix="make it with: hftune teach ... --output_dir FOLDER")
    wrong = [name for name, kind in _FIELDS.items() if type(about.get(name)) is not kind]
    # 1 << 31: ids are stored in 32 bits.
    counts = ("k", "vocabulary", "tokens", "shards", "records")
    if wrong or any(about[name] < 0 for name in counts) or not 0 < about["k"] <= about["vocabulary"] < 1 << 31:
        cause = f"{file} does not say {' and '.join(wrong)}" if wrong else f"{file} holds numbers that cannot be"
        raise ManifestError(cause, place=FLAG, fix=_FIX)
    return about
