"""Several documents in a row of `max_length` tokens, none of which sees or predicts another.

A packed row says where its documents begin (`position_ids` start again at 0, `seq_lengths` are their lengths), and the
first label of each is masked. The collator hands the boundaries to the attention (see `models/attention/layout.py`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from datasets import Dataset, Features, List, Value

from hftune.arguments.data import DataArguments
from hftune.arguments.training import StageArguments
from hftune.constants import IGNORE_INDEX, TEACHER_ROWS
from hftune.data.counts import Counts
from hftune.data.encoder import lists_of, write_batches
from hftune.data.sources import TokenizedSource, select_records
from hftune.data.storage import cached
from hftune.errors import ArgumentError, DataError
from hftune.logging import notice

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


STRATEGIES = ("bfd", "bfd_split", "wrapped")


@dataclass(frozen=True)
class Packing:
    """How documents are packed.

    Args:
        max_length: Tokens a row, at most.
        strategy: `bfd` keeps documents whole (best fit, decreasing); `bfd_split` does so for segments of at most
            `max_length`; `wrapped` cuts one stream of all documents, in their order, every `max_length` tokens.
        cross_document_attention: Each row counts as one document: its tokens see all before them.
    """

    max_length: int
    strategy: str = "bfd"
    cross_document_attention: bool = False

    @property
    def cuts(self) -> bool:
        """Whether documents may be cut while packing, and so must not be before."""
        return self.strategy != "bfd"


def packing_by_split(training_args: StageArguments, length: str) -> dict[str, Packing]:
    """How the splits "train" and "eval" are packed; those that are not are left out.

    Args:
        length: Name of the argument that is the length of a row, of the arguments and of the function that tokenises.

    Raises:
        ArgumentError: No such length.
    """
    train = bool(training_args.packing)
    # Held-out records are packed as training ones are, unless asked otherwise: their losses stay comparable.
    chosen = {"train": train, "eval": train if training_args.eval_packing is None else training_args.eval_packing}
    if all(chosen.values()) and training_args.padding_free:
        notice("--padding_free has no effect: packed rows have no padding")
    if not any(chosen.values()):
        return {}
    if getattr(training_args, length) is None:
        raise ArgumentError("packing needs to know how long rows are", place=f"--{length}", fix="Give a length.")
    packing = Packing(
        getattr(training_args, length),
        training_args.packing_strategy,
        getattr(training_args, "cross_document_attention", False),
    )
    return {name: packing for name, packs in chosen.items() if packs}


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


def packed_source(part: TokenizedSource, packing: Packing, data_args: DataArguments) -> TokenizedSource:
    """The records in packed rows, and their counts with tokens as packed and `packing` filled in."""

    def write(folder: Path) -> Counts:
        stats = pack_into(folder, part.dataset, packing)
        about = {"strategy": packing.strategy, **stats.to_dict()}
        return replace(part.counts, tokens=stats.tokens, trained_tokens=stats.trained_tokens, packing=about)

    key = xxhash.xxh3_128(f"{part.key} {packing}".encode()).hexdigest()
    dataset, counts = cached(key, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)
    # The key stays that of the records: it names the data in the manifest, however they are packed.
    return replace(part, dataset=dataset, counts=counts)


def select_packed_rows(part: TokenizedSource, positions: Sequence[int] | np.ndarray) -> TokenizedSource:
    """Packed rows by their positions, with what is in them counted."""
    kept, limit = select_records(part, positions), len(positions)
    assert part.counts.packing is not None, "packed before"
    table = kept.dataset.select_columns(["input_ids", "labels"]).with_format("arrow")[:]
    labels = pc.list_flatten(table["labels"])
    tokens, trained = len(labels), int(pc.sum(pc.not_equal(labels, IGNORE_INDEX)).as_py())
    room = limit * part.counts.packing["max_length"]
    about = part.counts.packing | {"packs": limit, "of": len(part.dataset), "fill": round(tokens / room, 4)}
    about |= {"tokens": tokens, "trained_tokens": trained}
    counts = replace(part.counts, tokens=tokens, trained_tokens=trained, packing=about)
    return replace(kept, counts=counts)
