"""Shards of targets: which records are in which, and how one is written in constant memory."""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from datasets import Dataset
from safetensors.numpy import save_file

from hftune.data.teacher_targets import INDEX, SHARD_KINDS, hashes_of
from hftune.errors import ManifestError
from hftune.opening.files import open_file
from hftune.opening.json_file import parse_json
from hftune.opening.safetensors_file import read_safetensors_header
from hftune.publishing.disk import flush

SHARD_BYTES = 1 << 25
"""Of the targets of a shard, roughly: what a killed process loses, and what two processes share out."""

LEAST_SHARDS = 64
"""That many where there are records enough, so that all processes have a share of a small data set."""

# Bytes that are kept free for the header, which is written last.
_HEADER = 1 << 15
# Lost mass from 1e-9 to 1, 128 steps a power of ten: a percentile is known to 2 %.
_STEPS, _DECADES = 128, 9


@dataclass(frozen=True)
class Work:
    """Records that are different from each other, and the shards that they are divided into.

    Attributes:
        records: (records,) int64, where each is in the data set: the first of those that are equal, in their order.
        hashes: (records, 2) uint64.
        places: (records + 1,) int64, the first trained token of each; the last entry is how many there are.
        bounds: (shards + 1,) int64: shard number s has the records from bounds[s] to before bounds[s + 1].
    """

    records: np.ndarray
    hashes: np.ndarray
    places: np.ndarray
    bounds: np.ndarray

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    def tokens_of(self, shard: int) -> int:
        """Trained tokens of a shard."""
        return int(self.places[self.bounds[shard + 1]] - self.places[self.bounds[shard]])


def divide(dataset: Dataset, k: int) -> Work:
    """The work of a data set: the same for any number of processes.

    Memory grows by about 60 bytes a record; the records themselves stay on the disk.
    """
    hashes, counts = hashes_of(dataset)
    # A record that is there a hundred times is asked about once.
    _, first = np.unique(hashes, axis=0, return_index=True)
    first = np.sort(first[counts[first] > 0])
    places = np.append(0, np.cumsum(counts[first]))
    most = max(1, min(SHARD_BYTES // (8 * k), -(-int(places[-1]) // LEAST_SHARDS)))
    bounds, last = [0], len(first)
    while bounds[-1] < last:
        # As many whole records as fit, and at least one.
        end = int(np.searchsorted(places, places[bounds[-1]] + most, side="right")) - 1
        bounds.append(min(max(end, bounds[-1] + 1), last))
    return Work(first, hashes[first], places, np.array(bounds))


class ShardFile:
    """A shard that is being filled, at any place in any order: only what is given at once is in memory."""

    def __init__(self, handle: int, tokens: int, k: int) -> None:
        self.handle, self.tokens, self.k = handle, tokens, k
        self.written, self.lost = 0, LostMass()

    def write(self, at: int, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """Targets of neighbouring tokens: both (tokens, k), the first of them at place `at` of the shard."""
        assert at + len(ids) <= self.tokens, "within the shard"
        for start, values, kind in ((0, ids, "<i4"), (4 * self.k * self.tokens, log_probs, "<f4")):
            data = np.ascontiguousarray(values, dtype=kind).tobytes()
            _write_at(self.handle, data, _HEADER + start + 4 * self.k * at)
        self.written += len(ids)
        self.lost.add(log_probs)

    def finish(self) -> None:
        """Write the header, without which the file is none."""
        assert self.written == self.tokens, "each place once"
        size, begin = 4 * self.k * self.tokens, 0
        lost = json.dumps(self.lost.to_dict())
        header: dict[str, object] = {"__metadata__": {"lost_mass": lost, "digest": _digest(self.handle, lost)}}
        for name, kind in SHARD_KINDS.items():
            header[name] = {"dtype": kind, "shape": [self.tokens, self.k], "data_offsets": [begin, begin + size]}
            begin += size
        text = json.dumps(header).encode()
        assert len(text) <= _HEADER - 8, "room for all steps of the histogram"
        _write_at(self.handle, struct.pack("<Q", _HEADER - 8) + text.ljust(_HEADER - 8), 0)


def is_whole(file: Path, tokens: int, k: int) -> bool:
    """Whether a shard is there to the byte as `ShardFile` writes it: what a killed process has left may be damaged."""
    try:
        header = read_safetensors_header(file)
        lost = header.metadata["lost_mass"]
        LostMass().merge(parse_json(lost, str(file)))
        with open_file(file) as stream:
            same = header.metadata["digest"] == _digest(stream.fileno(), lost)
    except (ManifestError, OSError, LookupError, TypeError, ValueError, ArithmeticError):
        return False
    about = {name: (entry["dtype"], entry["shape"]) for name, entry in header.tensors.items()}
    plain = stat.S_ISREG(os.lstat(file).st_mode)
    return same and plain and about == {name: (kind, [tokens, k]) for name, kind in SHARD_KINDS.items()}


def _digest(handle: int, lost: str) -> str:
    """Of all that stands behind the header, and of the lost mass that stands in it."""
    state, at = xxhash.xxh3_128(lost.encode()), _HEADER
    while data := os.pread(handle, 1 << 18, at):
        state.update(data)
        at += len(data)
    return state.hexdigest()


def _write_at(handle: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written


@contextmanager
def new_shard(file: Path, tokens: int, k: int) -> Iterator[ShardFile]:
    """A shard to fill; when the block ends without an error it has its name, and is on the disk."""
    aside = file.with_suffix(".partial")
    with suppress(FileNotFoundError):
        aside.unlink()  # of a process that was killed; the folder's lock keeps others away
    handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        shard = ShardFile(handle, tokens, k)
        yield shard
        shard.finish()
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(aside, file)
    flush(file.parent)


class LostMass:
    """Probability outside the k stored tokens: its mean, and its percentiles by a histogram, of any number of tokens.

    What it says depends on the tokens alone, not on their order or on who added which.
    """

    def __init__(self) -> None:
        self.tokens, self.total = 0, 0.0
        self.counts = np.zeros(_STEPS * _DECADES + 1, dtype=np.int64)

    def add(self, log_probs: np.ndarray) -> None:
        """Tokens by their (tokens, k) log-probabilities."""
        lost = np.clip(1 - np.exp(log_probs.astype(np.float64)).sum(axis=1), 0, 1)
        steps = np.ceil(_STEPS * (np.log10(np.maximum(lost, 10.0**-_DECADES)) + _DECADES))
        self.counts += np.bincount(steps.astype(np.int64), minlength=len(self.counts))
        self.tokens, self.total = self.tokens + len(lost), self.total + float(lost.sum())

    def merge(self, other: dict[str, Any]) -> None:
        """Add what `to_dict` said of other tokens."""
        self.tokens += int(other["tokens"])
        self.total += float(other["total"])
        for step, count in other["counts"]:
            self.counts[step] += count

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        steps = np.flatnonzero(self.counts)
        counts = [[int(step), int(self.counts[step])] for step in steps]
        return {"tokens": self.tokens, "total": self.total, "counts": counts}

    def figures(self) -> dict[str, float]:
        """Mean and 99th percentile (rounded up to its step of the histogram), shares of 1."""
        if not self.tokens:
            return {"mean": 0.0, "p99": 0.0}
        step = int(np.searchsorted(np.cumsum(self.counts), 0.99 * self.tokens))
        p99 = 10.0 ** (step / _STEPS - _DECADES) if step else 0.0
        return {"mean": self.total / self.tokens, "p99": p99}


def write_index(folder: Path, work: Work) -> None:
    """Write the hashes of all records, ascending, each with the place of its first trained token."""
    order = np.lexsort((work.hashes[:, 1], work.hashes[:, 0]))
    tensors = {"hashes": work.hashes[order], "places": work.places[:-1][order]}
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, folder / INDEX)
