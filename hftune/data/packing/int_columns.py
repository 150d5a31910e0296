"""Lists of integers in Arrow's buffers, read where they lie, without a Python object a token."""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from hftune.data.packing.bins import IntArray


class IntColumn:
    """Lists of integers, read from Arrow's buffers where they lie.

    Args:
        dataset: Without a selection on top.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        chunks = dataset.data.column(name).chunks
        # Arrow's offsets are int32 within a chunk; sums over chunks need 64 bits.
        offsets = [chunk.offsets.to_numpy().astype(np.int64) for chunk in chunks]
        self.values: list[np.ndarray] = [chunk.values.to_numpy() for chunk in chunks]
        self.lengths: IntArray = _joined([np.diff(part) for part in offsets])
        # Where each document lies: number of the chunk, first token in it.
        self.chunk: IntArray = np.repeat(np.arange(len(chunks)), [len(part) - 1 for part in offsets])
        self.begin: IntArray = _joined([part[:-1] for part in offsets])

    def of(self, document: int) -> np.ndarray:
        """The values of one document."""
        begin = int(self.begin[document])
        return self.values[self.chunk[document]][begin : begin + int(self.lengths[document])]

    def gather(self, documents: IntArray, starts: IntArray, lengths: IntArray) -> np.ndarray:
        """The values of segments, one after the other, of the column's own type."""
        out = np.empty(int(lengths.sum()), dtype=self.values[0].dtype if self.values else np.int32)
        at = 0
        begins = (self.begin[documents] + starts).tolist()
        for chunk, begin, length in zip(self.chunk[documents].tolist(), begins, lengths.tolist(), strict=True):
            # Segment by segment: one fancy index over all tokens would need eight bytes for each of them.
            out[at : at + length] = self.values[chunk][begin : begin + length]
            at += length
        return out


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
