"""Which documents share a row: pure functions on lengths, which never see a token.

A document is one segment or is cut into several, and segments go into bins. All of it is deterministic; a million
documents take seconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
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

    Bins are numbered by their first segment, so that the order of the data survives as far as it can.

    Args:
        lengths: int64, shape (segments,), each from 1 to `capacity`.
        capacity: Tokens a bin.
    """
    assert len(lengths) == 0 or (lengths.min() >= 1 and lengths.max() <= capacity), "lengths from 1 to capacity"
    # Descending, ties in their order.
    order = np.argsort(-lengths, kind="stable")
    bin_of = np.empty(len(lengths), dtype=np.int64)
    bins: defaultdict[int, deque[int]] = defaultdict(deque)
    # Bit number r is set where a bin has room r: the least room that is large enough is a shift away.
    rooms = count = 0
    for place, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            bin_of[place] = chosen = bins[room].popleft()
            rooms ^= 0 if bins[room] else 1 << room
        else:
            bin_of[place] = chosen = count
            room, count = capacity, count + 1
        if left := room - length:
            bins[left].append(chosen)
            rooms |= 1 << left
    return _in_order(bin_of)


def _in_order(bin_of: IntArray) -> Bins:
    """Bins numbered by their first segment, from the bin of each segment."""
    # The order in which bins were opened follows lengths; that of the data is what shuffling seeds expect.
    _, first, renumbered = np.unique(bin_of, return_index=True, return_inverse=True)
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(len(first))
    bin_of = rank[renumbered]
    return Bins(np.argsort(bin_of, kind="stable"), np.append(0, np.cumsum(np.bincount(bin_of))))
