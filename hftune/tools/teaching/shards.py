"""Shards of targets: which records are in which, and how one is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset
from safetensors.numpy import save, save_file

from hftune.data.teacher_targets import INDEX, hashes_of
from hftune.publishing.disk import write_file

SHARD_BYTES = 1 << 25
"""Of the targets of a shard, roughly: what a killed process loses, and what two processes share out."""

LEAST_SHARDS = 64
"""That many where there are records enough, so that all processes have a share of a small data set."""


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


class Shard:
    """A shard that is being filled, at any place in any order.

    Attributes:
        arrays: Both (tokens, k): `ids` of a teacher's most likely tokens, and their `log_probs`.
    """

    def __init__(self, tokens: int, k: int) -> None:
        self.k = k
        self.arrays = {"ids": np.full((tokens, k), -1, "<i4"), "log_probs": np.zeros((tokens, k), "<f4")}

    def write(self, at: np.ndarray, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """Targets of the tokens at some places of the shard: (tokens,) places, both others (tokens, k)."""
        self.arrays["ids"][at], self.arrays["log_probs"][at] = ids, log_probs

    def save(self, file: Path) -> None:
        """Write the whole of it, or nothing."""
        assert (self.arrays["ids"] >= 0).all(), "each place once"
        write_file(file, save(self.arrays))


def lost_mass(log_probs: np.ndarray) -> np.ndarray:
    """The probability outside the stored tokens of each place, (tokens,), by their (tokens, k) log-probabilities."""
    kept = np.exp(log_probs.astype(np.float64)).sum(axis=1)
    return np.clip(1 - kept, 0, 1).astype(np.float32)


def write_index(folder: Path, work: Work) -> None:
    """Write the hashes of all records, ascending, each with the place of its first trained token."""
    order = np.lexsort((work.hashes[:, 1], work.hashes[:, 0]))
    tensors = {"hashes": work.hashes[order], "places": work.places[:-1][order]}
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, folder / INDEX)
