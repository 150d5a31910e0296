"""Several documents in a row of `max_length` tokens, none of which sees or predicts another.

A packed row says where its documents begin (`position_ids` start again at 0, `seq_lengths` are their lengths), and the
first label of each is masked. The collator hands the boundaries to the attention (see `models/attention/choice.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset, Features, List, Value

from hftune.arguments.training import StageArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.packing.bins import (
    Bins,
    IntArray,
    Segments,
    best_fit_decreasing,
    cut_stream,
    split_overlong,
    whole_documents,
)
from hftune.data.packing.int_columns import IntColumn, int_lists
from hftune.data.storage.cache import cached
from hftune.data.tokenizing.counts import Counts, check_length
from hftune.data.tokenizing.encoder import write_batches
from hftune.errors import ArgumentError, DataError
from hftune.logging import notice

STRATEGIES = ("bfd", "bfd_split", "wrapped")

FEATURES = Features({name: List(Value("int32")) for name in ("input_ids", "labels", "position_ids", "seq_lengths")})
"""Columns of a packed dataset."""

TOKENS_AT_ONCE = 1 << 20
"""Tokens that are held in memory while writing."""


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
    dataset = dataset if dataset._indices is None else dataset.flatten_indices()
    columns = {name: IntColumn(dataset, name) for name in ("input_ids", "labels")}
    segments, bins = plan(columns["input_ids"].lengths, packing.max_length, packing.strategy)
    documents, segments_each = np.unique(segments.document, return_counts=True)
    stats = PackStats(packing.max_length, documents=len(documents), split_documents=int((segments_each > 1).sum()))
    rows = (
        _packs(columns, segments, bins, first, last, packing.cross_document_attention, stats)
        for first, last in _portions(segments, bins)
    )
    write_batches(folder, FEATURES.arrow_schema, rows)
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
    elif len(lengths) and lengths.max() > max_length:
        raise DataError(
            f"a document of {lengths.max()} tokens does not fit into rows of {max_length}",
            place="--packing_strategy bfd",
            fix="Truncate documents while tokenising, or use --packing_strategy bfd_split.",
        )
    else:
        segments = whole_documents(lengths)
    return segments, best_fit_decreasing(segments.length, max_length)


def pack_cached(
    dataset: Dataset,
    counts: Counts,
    packing: Packing,
    key: str,
    *,
    cache_dir: str | None = None,
    overwrite: bool = False,
) -> tuple[Dataset, Counts]:
    """`pack` through the cache, under the fingerprint `key` of the documents and the settings.

    Returns:
        The packed dataset, and the counts with tokens as packed and `packing` filled in.
    """

    def write(folder: Path) -> Counts:
        stats = pack_into(folder, dataset, packing)
        about = {"strategy": packing.strategy, **stats.to_dict()}
        return replace(counts, tokens=stats.tokens, trained_tokens=stats.trained_tokens, packing=about)

    own_key = xxhash.xxh3_128(f"{key} {packing}".encode()).hexdigest()
    return cached(own_key, write, cache_dir=cache_dir, overwrite=overwrite)


def _say_what_has_no_effect(training_args: StageArguments, some: bool, every: bool) -> None:
    """Settings of what is not done."""
    defaults = {field.name: field.default for field in fields(training_args)}
    for name in ("packing_strategy", "cross_document_attention"):
        if not some and getattr(training_args, name, None) != defaults.get(name):
            notice(f"--{name} has no effect without --packing")
    if every and training_args.padding_free:
        notice("--padding_free has no effect: packed rows have no padding")


def packing_by_split(training_args: StageArguments, length: str) -> dict[str, Packing]:
    """How the splits "train" and "eval" are packed; those that are not are left out.

    Args:
        length: Name of the argument that is the length of a row, of the arguments and of the function that tokenises.

    Raises:
        ArgumentError: No such length.
    """
    train = bool(training_args.packing)
    chosen = {"train": train, "eval": train if training_args.eval_packing is None else training_args.eval_packing}
    _say_what_has_no_effect(training_args, any(chosen.values()), all(chosen.values()))
    if not any(chosen.values()):
        return {}
    check_length(getattr(training_args, length), f"--{length}")
    if getattr(training_args, length) is None:
        raise ArgumentError("packing needs to know how long rows are", place=f"--{length}", fix="Give a length.")
    packing = Packing(
        getattr(training_args, length),
        training_args.packing_strategy,
        getattr(training_args, "cross_document_attention", False),
    )
    return {name: packing for name, packs in chosen.items() if packs}


def _portions(segments: Segments, bins: Bins) -> Iterator[tuple[int, int]]:
    """Ranges of bins with about `TOKENS_AT_ONCE` tokens each."""
    tokens = np.append(0, np.cumsum(segments.length[bins.segments]))[bins.offsets]
    first, count = 0, len(bins.offsets) - 1
    while first < count:
        last = int(np.searchsorted(tokens, tokens[first] + TOKENS_AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def _packs(
    columns: dict[str, IntColumn],
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
    ids, labels = (
        columns[name].gather(segments.document[chosen], segments.start[chosen], lengths)
        for name in ("input_ids", "labels")
    )
    sizes = np.add.reduceat(lengths, np.cumsum(per_pack) - per_pack)
    if cross_document_attention:
        lengths, per_pack = sizes, np.ones_like(sizes)
    starts = np.cumsum(lengths) - lengths
    # Nothing before it could have predicted the first token of a document.
    labels[starts] = IGNORE_INDEX
    positions = np.arange(len(ids)) - np.repeat(starts, lengths)
    trained = np.add.reduceat(labels != IGNORE_INDEX, np.cumsum(sizes) - sizes, dtype=np.int64)
    kept = trained > 0
    stats.packs += int(kept.sum())
    stats.tokens += int(sizes[kept].sum())
    stats.untrained_tokens += int(sizes[~kept].sum())
    stats.trained_tokens += int(trained.sum())
    arrays = [int_lists(values, sizes) for values in (ids, labels, positions)] + [int_lists(lengths, per_pack)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=FEATURES.arrow_schema)
    return batch if kept.all() else batch.filter(pa.array(kept))
