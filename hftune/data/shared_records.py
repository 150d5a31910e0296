"""Held-out records that are trained as well: figures of an evaluation are then of what the model has seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import xxhash
from datasets import Dataset

from hftune.logging import notice


def say_shared_records(train: Iterable[Dataset], held_out: Iterable[Dataset]) -> None:
    """Say how many held-out rows are in the training records to the letter (to the token, where they are tokenised)."""
    held = [one for dataset in held_out for one in row_digests(dataset)]
    left = set(held)
    trained = {one for dataset in train for one in row_digests(dataset) if one in left}
    shared = sum(one in trained for one in held)
    if shared:
        notice(
            f"{'all' if shared == len(held) else shared} of the {len(held)} held-out records are trained as well: the "
            "figures of an evaluation are of what the model has seen (give others with --validation_file_dir, or hold "
            "some out with --validation_split_percentage)"
        )


def say_shared_files(train: Iterable[str], held_out: Iterable[str]) -> None:
    """Say which files are both, of records that are not compared: streams, and documents tokenised ahead."""
    both = sorted({*train} & {*held_out})
    if both:
        notice(
            f"{', '.join(both[:3])}{', ...' if len(both) > 3 else ''}: trained and held out at once, so that the "
            "figures of an evaluation are of what the model has seen"
        )


def row_digests(dataset: Dataset) -> Iterator[int]:
    """64 bits a row over its columns of ids; over all its columns where it has none, as the prompts of RL."""
    ids = [name for name in dataset.column_names if name.endswith("_ids")]
    for table in dataset.select_columns(ids or dataset.column_names).with_format("arrow").iter(10_000):
        yield from _digests_of_ids(table, ids) if ids else _digests_of_values(table)


def _digests_of_ids(table: pa.Table, ids: list[str]) -> Iterator[int]:
    columns = [column.combine_chunks() for column in table.select(ids).itercolumns()]
    # A million rows are compared before each run: numbers stay where they are, no list is made of any.
    flat = [(memoryview(one.flatten().to_numpy()), one.offsets.to_numpy() - one.offsets[0].as_py()) for one in columns]
    for row in range(len(table)):
        state = xxhash.xxh3_64()
        for values, starts in flat:
            state.update(values[starts[row] : starts[row + 1]])
            state.update(b"|")
        yield state.intdigest()


def _digests_of_values(table: pa.Table) -> Iterator[int]:
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        yield xxhash.xxh3_64_intdigest(json.dumps(row, sort_keys=True, default=str).encode())
