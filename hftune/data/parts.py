"""The tokenised records of a source: made or found in the cache, counted, divided, joined with others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import xxhash
from datasets import Dataset, concatenate_datasets

from hftune.arguments import DataArguments
from hftune.data.cache import cached, fingerprint
from hftune.data.encoder import Encoder, write_tokenised
from hftune.data.encoding import Counts, all_dropped
from hftune.data.packing import Packing, packed
from hftune.data.readers.columns import parse_columns
from hftune.data.readers.dummy import FILE, dummy_chunks
from hftune.data.readers.hub import data_files
from hftune.data.sources import Chunk, chunks, first_rows
from hftune.data.workers import default_workers
from hftune.distributed import ranks
from hftune.logging import notice


@dataclass
class Part:
    """Tokenised records, and where they are from. `key` changes with all that changes them."""

    dataset: Dataset
    counts: Counts
    files: list[str]
    key: str


def load_part(path: str, flag: str, encoder: Encoder, data_args: DataArguments, *, limit: int = -1) -> Part:
    """The records of a file, a folder or a Hub name, tokenised, from the cache where they are there.

    Args:
        limit: Read so many records at most; -1 for all.

    Raises:
        DataError: A file or record that cannot be used, with file and line; or nothing left.
        ArgumentError: `--columns` names what no record has.
    """
    files = data_files(path, flag)
    read = partial(_chunks, files, limit)
    key = fingerprint(files, encoder.tokenizer, **_settings(encoder, data_args), records=limit)
    return _made(key, read, encoder, data_args, [str(file) for file in files])


def generated_part(encoder: Encoder, data_args: DataArguments) -> Part:
    """`--dummy_data` records."""
    assert data_args.dummy_data is not None
    kind = encoder.dummy_kind
    key = fingerprint([], encoder.tokenizer, **_settings(encoder, data_args), records=[data_args.dummy_data, kind])
    return _made(key, partial(dummy_chunks, data_args.dummy_data, kind), encoder, data_args, [FILE])


def _settings(encoder: Encoder, data_args: DataArguments) -> dict[str, object]:
    return {"encoder": encoder.settings(), "on_bad_record": data_args.on_bad_record, "columns": data_args.columns}


def _made(
    key: str, read: Callable[[], Iterator[Chunk]], encoder: Encoder, data_args: DataArguments, files: list[str]
) -> Part:
    write = partial(_write, read=read, encoder=encoder, data_args=data_args)
    dataset, counts = cached(key, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)
    for reason, example in counts.examples.items():
        notice(f"{counts.dropped[reason]} record(s) dropped: {reason} (first: {example})")
    return Part(encoder.finish(dataset), counts, files, key)


def _chunks(files: list[Path], limit: int) -> Iterator[Chunk]:
    return first_rows(chunks(files), limit) if limit > 0 else chunks(files)


def _write(folder: Path, read: Callable[[], Iterator[Chunk]], encoder: Encoder, data_args: DataArguments) -> Counts:
    """Tokenise into a folder of the cache.

    Raises:
        DataError: A record that cannot be used, or none left.
    """
    counts = write_tokenised(
        read(),
        encoder,
        folder,
        workers=data_args.preprocessing_num_workers or default_workers(),
        on_bad_record=data_args.on_bad_record,
        columns=parse_columns(data_args.columns),
        progress=ranks.is_main(),
    )
    if not counts.used:
        raise all_dropped(counts, encoder.length_flag)
    return counts


# --- some of them ---------------------------------------------------------------------------------------------------


def divide(part: Part, percentage: float, seed: int) -> tuple[Part, Part]:
    """The part without some records drawn with `seed`, and those."""
    kept, held = hold_out(len(part.dataset), percentage, seed)
    return select(part, kept), select(part, held)


def hold_out(count: int, percentage: float, seed: int) -> tuple[list[int], list[int]]:
    """Positions of training and held-out records; at least one on each side, in their order in the files."""
    held = min(max(1, round(count * percentage / 100)), count - 1)
    drawn = set(random.Random(seed).sample(range(count), held))
    return [at for at in range(count) if at not in drawn], sorted(drawn)


def first(part: Part, limit: int) -> Part:
    """At most `limit` records of a part; -1 for all."""
    return select(part, range(limit)) if 0 < limit < len(part.dataset) else part


def take(part: Part, number: int | None, seed: int) -> Part:
    """`number` records drawn with `seed`, in their order; more than there are repeats them. None for all."""
    if number is None or number == len(part.dataset):
        return part
    rounds, rest = divmod(number, len(part.dataset))
    drawn = sorted(random.Random(seed).sample(range(len(part.dataset)), rest))
    return select(part, [*range(len(part.dataset))] * rounds + drawn)


def select(part: Part, positions: Sequence[int]) -> Part:
    """Records by their positions, with counts of their own."""
    dataset = part.dataset.select(positions)
    counts = replace(
        part.counts, used=len(dataset), tokens=_sum(dataset, "length"), trained_tokens=_sum(dataset, "trained")
    )
    key = xxhash.xxh3_128(part.key.encode() + np.asarray(positions, dtype=np.int64).tobytes()).hexdigest()
    return replace(part, dataset=dataset, counts=counts, key=key)


def _sum(dataset: Dataset, column: str) -> int:
    """The sum of a column of numbers; 0 where there is none."""
    if column not in dataset.column_names:
        return 0
    values = dataset.select_columns(column).with_format("arrow")[:][column]
    return int(pc.sum(values).as_py() or 0)


# --- several of them ------------------------------------------------------------------------------------------------


def join(parts: Sequence[Part]) -> Part:
    """All records, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    counts = Counts()
    for part in parts:
        counts.add(part.counts)
    key = xxhash.xxh3_128("".join(part.key for part in parts).encode()).hexdigest()
    files = [file for part in parts for file in part.files]
    return Part(concatenate_datasets([part.dataset for part in parts]), counts, files, key)


def pack_part(part: Part, packing: Packing, data_args: DataArguments) -> Part:
    """The records in packed rows."""
    dataset, counts = packed(
        part.dataset,
        part.counts,
        packing,
        part.key,
        cache_dir=data_args.data_cache_dir,
        overwrite=data_args.overwrite_cache,
    )
    return replace(part, dataset=dataset, counts=counts)
