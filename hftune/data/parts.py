"""The tokenised records of a split: made or found in the cache, counted, divided."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
from datasets import Dataset

from hftune.arguments import DataArguments
from hftune.data.cache import cached, fingerprint
from hftune.data.encoding import Counts, all_dropped
from hftune.data.sources import Chunk, chunks, find_files, first_rows
from hftune.data.tokenised import Encoder, write_tokenised
from hftune.data.workers import default_workers
from hftune.distributed import ranks
from hftune.logging import notice


@dataclass
class Part:
    """The tokenised records of a split, and where they are from."""

    dataset: Dataset
    counts: Counts
    files: list[Path]
    key: str


def load_part(path: str | None, flag: str, encoder: Encoder, data_args: DataArguments, *, limit: int = -1) -> Part:
    """The records at a path, tokenised, from the cache where they are there.

    Args:
        limit: Read so many records at most; -1 for all.

    Raises:
        DataError: A file or record that cannot be used, with file and line; or nothing left.
    """
    assert path is not None, "preflight asks for the flag"
    files = find_files(path, flag)
    settings = encoder.settings() | {"limit": limit, "on_bad_record": data_args.on_bad_record}
    key = fingerprint(files, encoder.tokenizer, **settings)
    write = partial(
        _write,
        read=partial(_chunks, files, limit),
        encoder=encoder,
        workers=data_args.preprocessing_num_workers or default_workers(),
        on_bad_record=data_args.on_bad_record,
    )
    dataset, counts = cached(key, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)
    for reason, example in counts.examples.items():
        notice(f"{counts.dropped[reason]} record(s) dropped: {reason} (first: {example})")
    return Part(encoder.finish(dataset), counts, files, key)


def _chunks(files: list[Path], limit: int) -> Iterator[Chunk]:
    return first_rows(chunks(files), limit) if limit > 0 else chunks(files)


def _write(
    folder: Path, read: Callable[[], Iterator[Chunk]], encoder: Encoder, workers: int, on_bad_record: str
) -> Counts:
    """Tokenise into a folder of the cache.

    Raises:
        DataError: A record that cannot be used, or none left.
    """
    counts = write_tokenised(
        read(), encoder, folder, workers=workers, on_bad_record=on_bad_record, progress=ranks.is_main()
    )
    if not counts.used:
        raise all_dropped(counts, encoder.length_flag)
    return counts


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


def select(part: Part, positions: list[int] | range) -> Part:
    """Some of the records, with counts of their own."""
    dataset = part.dataset.select(positions)
    counts = replace(
        part.counts, used=len(dataset), tokens=_sum(dataset, "length"), trained_tokens=_sum(dataset, "trained")
    )
    return replace(part, dataset=dataset, counts=counts)


def _sum(dataset: Dataset, column: str) -> int:
    """The sum of a column of numbers; 0 where there is none."""
    if column not in dataset.column_names:
        return 0
    values = dataset.select_columns(column).with_format("arrow")[:][column]
    return int(pc.sum(values).as_py() or 0)
