"""Several documents in a row of `max_length` tokens, none of which sees or predicts another.

A packed row says where its documents begin (`position_ids` start again at 0, `seq_lengths` are their lengths), and the
first label of each is masked. The collator hands the boundaries to the attention (see `models/attention/layout.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value

from hftune.constants import IGNORE_INDEX, TEACHER_ROWS
from hftune.data.encoder import lists_of, write_batches
from hftune.data.packing.bins import (
    Bins,
    IntArray,
    Segments,
    best_fit_decreasing,
    cut_stream,
    split_overlong,
    whole_documents,
)
from hftune.data.packing.int_columns import IntColumn
from hftune.data.packing.settings import STRATEGIES, Packing
from hftune.errors import DataError

FEATURES = Features({name: List(Value("int32")) for name in ("input_ids", "labels", "position_ids", "seq_lengths")})
"""Columns of a packed dataset; teacher_rows (int64) comes last where records have it."""

TOKENS_AT_ONCE = 1 << 20
"""Tokens that are held in memory while writing."""


@dataclass
class PackStats:
    """What became of the documents.

    `tokens` are those in the packs and `trained_tokens` those with a loss. Packs in which no token would be trained are
    left out: `untrained_tokens` were in them.
    """

    max_length: int
    packs: int = 0
    documents: int = 0
    split_documents: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    untrained_tokens: int = 0

    @property
    def fill(self) -> float:
        """Share of the rows' room that is used, 0 to 1."""
        return self.tokens / (self.packs * self.max_length) if self.packs else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest and the cache."""
        return {**asdict(self), "fill": round(self.fill, 4)}


def pack_into(folder: Path, dataset: Dataset, packing: Packing) -> PackStats:
    """Write packed rows into an empty folder, as `Dataset.save_to_disk` would.

    Tokens go from one memory-mapped file to another, so memory grows with the number of documents only (about 150 bytes
    each), not with their length. The same documents give the same rows.

    Raises:
        DataError: A document longer than `max_length` with `bfd`, or no token to train.
    """
    assert packing.strategy in STRATEGIES, packing.strategy
    # A selection is an index on the side; the buffers below know nothing of it.
    if dataset._indices is not None:
        # On this disk, for as long as it is mapped: it may be as large as the data.
        flat = folder / "flat.arrow"
        dataset = dataset.flatten_indices(cache_file_name=str(flat))
        flat.unlink()
    features = FEATURES.copy()
    if TEACHER_ROWS in dataset.column_names:
        features[TEACHER_ROWS] = List(Value("int64"))
    columns = {name: IntColumn(dataset, name) for name in ("input_ids", "labels", TEACHER_ROWS) if name in features}
    segments, bins = plan(columns["input_ids"].lengths, packing.max_length, packing.strategy)
    # Without empty documents, which have no segment.
    documents, segments_each = np.unique(segments.document, return_counts=True)
    stats = PackStats(packing.max_length, documents=len(documents), split_documents=int((segments_each > 1).sum()))
    rows = (
        _packs(columns, features.arrow_schema, segments, bins, first, last, packing.cross_document_attention, stats)
        for first, last in _portions(segments, bins)
    )
    write_batches(folder, features.arrow_schema, rows)
    if not stats.packs:
        raise DataError("packing leaves no token to train", fix="Give more data, or a larger maximum length.")
    return stats


def plan(lengths: IntArray, max_length: int, strategy: str) -> tuple[Segments, Bins]:
    """The segments of documents of these lengths, and which of them share a row.

    Raises:
        DataError: A document longer than `max_length` with `bfd`.
    """
    if strategy == "wrapped":
        return cut_stream(lengths, max_length)
    if strategy == "bfd_split":
        segments = split_overlong(lengths, max_length)
    else:
        _refuse_overlong(lengths, max_length)
        segments = whole_documents(lengths)
    return segments, best_fit_decreasing(segments.length, max_length)


def _refuse_overlong(lengths: IntArray, max_length: int) -> None:
    # An encoder with the same limit has cut them; this is for data of others.
    if len(lengths) and lengths.max() > max_length:
        raise DataError(
            f"a document of {lengths.max()} tokens does not fit into rows of {max_length}",
            place="--packing_strategy bfd",
            fix="Truncate documents while tokenising, or use --packing_strategy bfd_split.",
        )


def _portions(segments: Segments, bins: Bins) -> Iterator[tuple[int, int]]:
    """Ranges of bins with about `TOKENS_AT_ONCE` tokens each."""
    # Written in portions: memory stays flat, and each portion is one record batch of the file.
    tokens = np.append(0, np.cumsum(segments.length[bins.segments]))[bins.offsets]
    first, count = 0, len(bins.offsets) - 1
    while first < count:
        last = int(np.searchsorted(tokens, tokens[first] + TOKENS_AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def _packs(
    columns: dict[str, IntColumn],
    schema: pa.Schema,
    segments: Segments,
    bins: Bins,
    first: int,
    last: int,
    cross_document_attention: bool,
    stats: PackStats,
) -> pa.RecordBatch:
    """The bins from `first` to before `last` as rows, counted in `stats`."""
    chosen = bins.segments[bins.offsets[first] : bins.offsets[last]]
    lengths = segments.length[chosen]
    per_pack = np.diff(bins.offsets[first : last + 1])
    ids, labels, *more = (
        column.gather(segments.document[chosen], segments.start[chosen], lengths) for column in columns.values()
    )
    # Tokens of each row; `reduceat` takes where each row's first segment is.
    sizes = np.add.reduceat(lengths, np.cumsum(per_pack) - per_pack)
    if cross_document_attention:
        lengths, per_pack = sizes, np.ones_like(sizes)
    starts = np.cumsum(lengths) - lengths
    # Nothing before it could have predicted the first token of a document.
    labels[starts] = IGNORE_INDEX
    positions = np.arange(len(ids)) - np.repeat(starts, lengths)
    trained = np.add.reduceat(labels != IGNORE_INDEX, np.cumsum(sizes) - sizes, dtype=np.int64)
    # A row without a target gives a loss of 0 / 0 in a micro batch of its own.
    kept = trained > 0
    stats.packs += int(kept.sum())
    stats.tokens += int(sizes[kept].sum())
    stats.untrained_tokens += int(sizes[~kept].sum())
    stats.trained_tokens += int(trained.sum())
    arrays = [lists_of(values, sizes) for values in (ids, labels, positions)] + [lists_of(lengths, per_pack)]
    arrays += [lists_of(values, sizes, schema.field(TEACHER_ROWS).type) for values in more]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if kept.all() else batch.filter(pa.array(kept))
