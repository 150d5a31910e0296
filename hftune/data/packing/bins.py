"""Which documents share a row: pure functions on lengths, which never see a token.

A document is one segment or is cut into several, and segments go into bins. All of it is numpy, so that millions of
documents take seconds, and all of it is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IntArray = np.ndarray
"""One-dimensional, int64."""


@dataclass(frozen=True)
class Segments:
    """Runs of tokens, in the order of their documents; each array has one entry a segment.

    Args:
        document: Index of the document.
        start: First token of the segment, counted within the document.
        length: Tokens, 1 or more.
    """

    document: IntArray
    start: IntArray
    length: IntArray


@dataclass(frozen=True)
class Bins:
    """Bin number b holds the segments `segments[offsets[b]:offsets[b + 1]]`, indices in ascending order."""

    segments: IntArray
    offsets: IntArray


def whole_documents(lengths: IntArray) -> Segments:
    """One segment a document; empty documents have none."""
    kept = np.flatnonzero(lengths)
    return Segments(kept, np.zeros_like(kept), lengths[kept])


def split_overlong(lengths: IntArray, capacity: int) -> Segments:
    """As `whole_documents`, but documents above `capacity` tokens in segments of `capacity` and a rest."""
    # Rounded up; an empty document gets no segment.
    counts = -(-lengths // capacity)
    document = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = number * capacity
    return Segments(document, start, np.minimum(capacity, lengths[document] - start))


def cut_stream(lengths: IntArray, capacity: int) -> tuple[Segments, Bins]:
    """All documents as one stream of tokens, cut every `capacity` tokens; only the last bin is not full."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    # A segment begins where a document does, or where a bin is full.
    start = np.union1d(ends[ends < total], np.arange(0, total, capacity)).astype(np.int64)
    document = np.searchsorted(ends, start, side="right")
    before = ends[document] - lengths[document]
    segments = Segments(document, start - before, np.diff(start, append=total))
    per_bin = np.bincount(start // capacity)
    return segments, Bins(np.arange(len(start)), np.append(0, np.cumsum(per_bin)))


def best_fit_decreasing(lengths: IntArray, capacity: int) -> Bins:
    """Longest first, each into the fullest bin that still has room for it, else into a new one.

    Bins are numbered by their first segment, so that the order of the data survives as far as it can. A length goes
    into all bins of one room at a time, which costs time in the number of different lengths and not of documents (but
    for sorting): a bin that took one segment is the fullest with room for the next one of that length, too.

    Args:
        lengths: int64, shape (segments,), each from 1 to `capacity`.
        capacity: Tokens a bin.
    """
    assert len(lengths) == 0 or (lengths.min() >= 1 and lengths.max() <= capacity), "lengths from 1 to capacity"
    # Descending, ties in their order.
    order = np.argsort(-lengths, kind="stable")
    sizes, counts = np.unique(lengths, return_counts=True)
    rooms = _Rooms(capacity)
    bin_of = np.empty(len(lengths), dtype=np.int64)
    placed = 0
    for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        end = placed + count
        while placed < end:
            # Best fit: the fullest bin that has room. All bins of this room take as many as they can hold at once.
            room = rooms.smallest(size)
            each = room // size
            bins = rooms.take(room, -(-(end - placed) // each))
            taken = min(len(bins) * each, end - placed)
            bin_of[order[placed : placed + taken]] = np.repeat(bins, each)[:taken]
            full, rest = divmod(taken, each)
            rooms.put(room - each * size, bins[:full])
            rooms.put(room - rest * size, bins[full:])
            placed += taken
    return _in_order(bin_of)


class _Rooms:
    """Bins by the room they have left."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.bins: dict[int, list[IntArray]] = {}
        # Bit number r is set where a bin has room r: the next room up is one shift away.
        self.bits = 0

    def smallest(self, size: int) -> int:
        """The least room that holds `size`; that of an empty bin where no open one does."""
        # Lowest set bit of the rooms that are large enough: a Python integer of `capacity` bits as a sorted set.
        fitting = self.bits >> size
        return size + (fitting & -fitting).bit_length() - 1 if fitting else self.capacity

    def take(self, room: int, wanted: int) -> IntArray:
        """At most `wanted` bins with exactly this room; new ones where there are none."""
        if not (self.bits >> room) & 1:
            self.count += wanted
            return np.arange(self.count - wanted, self.count)
        found = np.concatenate(self.bins.pop(room))
        self.bits ^= 1 << room
        self.put(room, found[wanted:])
        return found[:wanted]

    def put(self, room: int, bins: IntArray) -> None:
        """Bins that have this room now; full ones are forgotten."""
        if room and len(bins):
            self.bins.setdefault(room, []).append(bins)
            self.bits |= 1 << room


def _in_order(bin_of: IntArray) -> Bins:
    """Bins numbered by their first segment, from the bin of each segment."""
    # The order in which bins were opened follows lengths; that of the data is what shuffling seeds expect.
    _, first, renumbered = np.unique(bin_of, return_index=True, return_inverse=True)
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(len(first))
    bin_of = rank[renumbered]
    return Bins(np.argsort(bin_of, kind="stable"), np.append(0, np.cumsum(np.bincount(bin_of))))
