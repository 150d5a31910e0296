"""Records by their content: 128 bits over token ids and over which of them are trained.

By them a record finds what a teacher said of it, in whatever order, row or epoch it comes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset

from hftune.constants import IGNORE_INDEX

_AT_ONCE = 1024
"""Records in memory at a time."""


def trained_places(labels: np.ndarray) -> np.ndarray:
    """Which tokens of a record are predicted and trained, bool; the first has nothing before it to be predicted by."""
    found = labels != IGNORE_INDEX
    found[:1] = False
    return found


def record_hash(ids: np.ndarray, trained: np.ndarray) -> bytes:
    """Of one record: `ids` (tokens,) int32, `trained` (tokens,) bool; sixteen bytes."""
    # Ids first: the length of the mask follows from them, so that no two records share their bytes.
    return xxhash.xxh3_128(len(ids).to_bytes(8, "little") + ids.tobytes() + np.packbits(trained).tobytes()).digest()


def records(dataset: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids (int32) and trained places (bool) of each record, read a thousand at a time."""
    columns = dataset.select_columns(["input_ids", "labels"]).with_format("arrow")
    for table in columns.iter(batch_size=_AT_ONCE):
        ids, labels = (_lists(table.column(name)) for name in ("input_ids", "labels"))
        yield from ((one, trained_places(label)) for one, label in zip(ids, labels, strict=True))


def _lists(column: pa.ChunkedArray) -> Iterator[np.ndarray]:
    for chunk in column.chunks:
        # `flatten` knows that a chunk may be a part of a larger buffer.
        values = chunk.flatten().to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        yield from np.split(values, np.cumsum(chunk.value_lengths().to_numpy())[:-1]) if len(chunk) else ()


def hashes_of(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """(records, 2) uint64, the two halves of each record's hash; (records,) int64, its trained tokens."""
    digests, counts = bytearray(), np.zeros(len(dataset), dtype=np.int64)
    for number, (ids, trained) in enumerate(records(dataset)):
        digests += record_hash(ids, trained)
        counts[number] = trained.sum()
    return np.frombuffer(bytes(digests), dtype=">u8").reshape(-1, 2).astype("<u8"), counts
