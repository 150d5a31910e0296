"""Records with the place at which the targets of each of their tokens are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments.data import DataArguments
from hftune.arguments.distill import DistillArguments
from hftune.constants import TEACHER_ROWS
from hftune.data.sources import TokenizedSource, select_records
from hftune.data.storage.cache import cached, tokenizer_key
from hftune.data.teaching.hashes import hashes_of, records
from hftune.data.teaching.stored import FLAG, StoredTargets
from hftune.data.tokenizing.counts import Counts
from hftune.data.tokenizing.encoder import lists_of, write_batches
from hftune.errors import DataError
from hftune.logging import notice

KIND = pa.list_(pa.int64())
_AT_ONCE = 1024


def taught_source(
    tokenizer: PreTrainedTokenizerBase, args: DistillArguments, data_args: DataArguments, part: TokenizedSource
) -> TokenizedSource:
    """The records of a source with the column `teacher_rows`: of each token the place of its targets, -1 for none.

    Args:
        tokenizer: Of the records.
        args: `teacher_targets` names the folder; `drop_untaught` leaves out, and counts, records without targets.

    Raises:
        DataError: A record has no targets, with how many of how many; or they are of another tokenizer.
        ManifestError: The folder is damaged.
    """
    folder, drop = str(args.teacher_targets), args.drop_untaught
    stored = StoredTargets(folder)
    if stored.about["tokenizer"] != tokenizer_key(tokenizer):
        raise DataError(
            f"the targets in {folder} were computed with another tokenizer or chat template",
            place=FLAG,
            fix="give this run the tokenizer and the template arguments that hftune teach was given, or teach again",
        )
    hashes, counts = hashes_of(part.dataset)
    firsts = stored.places_of(hashes)
    missing = firsts < 0
    if missing.any():
        part, firsts = _without(part, firsts, missing, drop)
    if (firsts + counts[~missing] > stored.tokens).any():
        raise DataError(f"the targets in {folder} end within a record", place=FLAG, fix="make them again")

    def write(place: Path) -> Counts:
        schema = part.dataset.data.schema.remove_metadata().append(pa.field(TEACHER_ROWS, KIND))
        write_batches(place, schema, _with_rows(part.dataset, firsts, schema))
        return part.counts

    # By what is stored, not by the folder's name: another one may have taken its place.
    state = xxhash.xxh3_128(f"{part.key} teacher rows ".encode() + firsts.tobytes()).hexdigest()
    dataset, _ = cached(state, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)
    return replace(part, dataset=dataset, key=state)


def _without(
    part: TokenizedSource, firsts: np.ndarray, missing: np.ndarray, drop: bool
) -> tuple[TokenizedSource, np.ndarray]:
    """The part without the records that have no targets."""
    number, first = int(missing.sum()), int(missing.argmax())
    files = ", ".join(part.files[:3]) + (", ..." if len(part.files) > 3 else "")
    said = f"{number} of {len(missing)} records have no stored targets (first: number {first + 1} of those used)"
    if not drop or missing.all():
        raise DataError(
            said,
            place=files or FLAG,
            fix="give hftune teach the same data, --max_length, template and masking arguments as this run"
            + ("" if missing.all() else "; or leave these records out with --drop_untaught"),
        )
    notice(f"{said}: left out (--drop_untaught)")
    kept = select_records(part, np.flatnonzero(~missing))
    dropped = {**kept.counts.dropped, "no stored targets": number}
    return replace(kept, counts=replace(kept.counts, dropped=dropped)), firsts[~missing]


def _with_rows(dataset: Dataset, firsts: np.ndarray, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records a thousand at a time, with their new column last."""
    seen = iter(zip(records(dataset), firsts.tolist(), strict=True))
    for table in dataset.with_format("arrow").iter(batch_size=_AT_ONCE):
        rows = [rows_of(trained, first) for (_, trained), first in islice(seen, len(table))]
        column = lists_of(np.concatenate(rows), [len(one) for one in rows], KIND)
        whole = table.combine_chunks().append_column(TEACHER_ROWS, column).cast(schema)
        yield from whole.to_batches()


def rows_of(trained: np.ndarray, first: int) -> np.ndarray:
    """(tokens,) int64: the places of a record's trained tokens, one after the other from `first`; -1 elsewhere."""
    return np.where(trained, first + np.cumsum(trained) - 1, -1)
