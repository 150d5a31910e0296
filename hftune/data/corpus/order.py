"""The order in which the tokens of one source are trained, as a function of positions alone.

A source is an endless stream of tokens, epoch after epoch. Each epoch holds every document once, in an order of its
own:

1. The documents are cut, as they lie on disk, into `shards` pieces of equal number (the logical shards).
2. The shards are visited in a random order, a window of them at a time; a window holds `buffer` documents or more.
3. Within a window all documents are shuffled together.

So a window mixes documents from all over the source, only one window's index is in memory, and *any position of the
stream can be found at once*: how many tokens each shard holds is known beforehand from Arrow's offsets. Nothing has
to be replayed, nothing has been fetched and not yet trained, and no process owns a shard. What a checkpoint must hold
is one number a source. That is why the number of processes, DataLoader workers and the batch size may change at any
point, and why `shards` need not be divisible by any of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hftune.data.corpus.documents import Documents
from hftune.data.mixture import permutation


class Segment(NamedTuple):
    """Tokens `begin` to before `end` of a document of a source, by number."""

    document: int
    begin: int
    end: int


class _Window(NamedTuple):
    """Documents in their order of training, and the tokens in front of each, with the total at the end."""

    documents: np.ndarray
    starts: np.ndarray


class SourceOrder:
    """Where in a source's documents a position of its endless stream lies.

    Args:
        documents: The source.
        seed: With the source's name, what all its orders depend on.
        shards: Logical shards. More make a window more mixed, fewer make longer sequential reads.
        buffer: Documents that are shuffled together at least; 0 keeps the order of the files.
    """

    _KEPT = 3
    """Windows kept: a block may reach from one into the next, and prefetching may lag by one."""

    def __init__(self, documents: Documents, *, seed: int, shards: int, buffer: int) -> None:
        self.documents = documents
        self.shuffled = buffer > 0
        # With the name of the source, so that two sources of one length do not have the same order; crc32, since
        # Python's hash of a text changes from process to process.
        self._key = (seed & 0xFFFFFFFF, zlib.crc32(documents.name.encode()))
        self.boundaries = np.arange(shards + 1, dtype=np.int64) * len(documents) // shards
        self._shard_tokens = np.diff([documents.tokens_before(int(boundary)) for boundary in self.boundaries])
        # A source may have fewer documents than logical shards; most of them are empty then.
        per_shard = max(len(documents) / shards, 1e-9)
        self._window = min(max(1, -int(-buffer // per_shard)), shards)
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._windows: dict[tuple[int, int], _Window] = {}

    @property
    def tokens(self) -> int:
        """Tokens of an epoch."""
        return self.documents.tokens

    def segments(self, position: int, count: int) -> list[Segment]:
        """The stretch of `count` tokens from `position` of the stream on, as pieces of documents.

        It may reach over the end of an epoch, and over several of a tiny source.
        """
        found: list[Segment] = []
        while count > 0:
            epoch, within = divmod(position, self.tokens)
            # By position alone: no document in front of it is looked at.
            _, starts = self._epoch(epoch)
            number = int(np.searchsorted(starts, within, side="right")) - 1
            window = self._load(epoch, number)
            taken = min(count, int(starts[number + 1]) - within)
            found += _cut(window, within - int(starts[number]), taken)
            position, count = position + taken, count - taken
        return found

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards in the order of this epoch, and the tokens in front of each window, with the total at the end."""
        if epoch not in self._epochs:
            _make_room(self._epochs, self._KEPT)
            shards = len(self._shard_tokens)
            # A buffer of 0 asks for the order of the files, which held-out blocks have.
            order = permutation(shards, *self._key, epoch) if self.shuffled else np.arange(shards)
            sums = np.add.reduceat(self._shard_tokens[order], np.arange(0, shards, self._window))
            self._epochs[epoch] = order, np.concatenate([[0], np.cumsum(sums)])
        return self._epochs[epoch]

    def _load(self, epoch: int, number: int) -> _Window:
        """A window's documents and where each begins."""
        key = epoch, number
        if key not in self._windows:
            _make_room(self._windows, self._KEPT)
            order, _ = self._epoch(epoch)
            shards = order[number * self._window : (number + 1) * self._window]
            ranges = [(int(self.boundaries[shard]), int(self.boundaries[shard + 1])) for shard in shards]
            documents = np.concatenate([np.arange(first, last) for first, last in ranges])
            lengths = np.concatenate([self.documents.lengths(first, last) for first, last in ranges])
            if self.shuffled:
                mixed = permutation(len(documents), *self._key, epoch, number)
                documents, lengths = documents[mixed], lengths[mixed]
            self._windows[key] = _Window(documents, np.concatenate([[0], np.cumsum(lengths)]))
        return self._windows[key]


def _cut(window: _Window, position: int, count: int) -> Iterator[Segment]:
    """Pieces of `count` tokens from `position` in the window on; empty documents give none."""
    first = int(np.searchsorted(window.starts, position, side="right")) - 1
    last = int(np.searchsorted(window.starts, position + count, side="left"))
    for place in range(first, last):
        start = int(window.starts[place])
        begin, end = max(position - start, 0), min(position + count, int(window.starts[place + 1])) - start
        if end > begin:
            yield Segment(int(window.documents[place]), begin, end)


def _make_room(cache: dict[Any, Any], kept: int) -> None:
    """Drop the oldest entry of a full cache; dictionaries keep the order of insertion."""
    # Not an lru_cache: the entries belong to this object and go to workers with it.
    while len(cache) >= kept:
        del cache[next(iter(cache))]
