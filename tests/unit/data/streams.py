"""Raw records in chunks, and a stand-in for tokenising them in which every token is another number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from hftune.data.files import Row
from hftune.data.streaming import StreamingDataset, StreamSettings
from hftune.errors import DataError


@dataclass(frozen=True)
class Numbers:
    """Records of the numbers `first` to before `last`; those in `bad` cannot be read."""

    first: int
    last: int
    bad: frozenset[int] = frozenset()

    def rows(self) -> Iterator[Row | DataError]:
        for number in range(self.first, self.last):
            place = f"numbers.jsonl:{number + 1}"
            yield (
                DataError("bad record", place=place)
                if number in self.bad
                else Row({"number": number}, "numbers.jsonl", number + 1)
            )


def encode(row: Row, empty: frozenset[int] = frozenset()) -> list[dict[str, np.ndarray]]:
    """Record n is the tokens 4n to 4n + 3; records in `empty` give no example."""
    number = row.value["number"]
    ids = np.arange(4 * number, 4 * number + 4, dtype=np.int32)
    return [] if number in empty else [{"input_ids": ids, "labels": ids.copy()}]


def numbers(count: int, per_chunk: int, bad: frozenset[int] = frozenset()) -> list[Numbers]:
    return [Numbers(start, min(start + per_chunk, count), bad) for start in range(0, count, per_chunk)]


def stream_of(
    count: int,
    per_chunk: int = 2,
    *,
    chunks: int = 2,
    block_size: int | None = None,
    seed: int | None = 1,
    bad: frozenset[int] = frozenset(),
    empty: frozenset[int] = frozenset(),
    **given: object,
) -> StreamingDataset:
    """A stream of `count` records in windows of `chunks` chunks of `per_chunk`."""
    settings = StreamSettings("the same data", seed, chunks, block_size)
    source = partial(numbers, count, per_chunk, bad)
    return StreamingDataset(source, partial(encode, empty=empty), settings, **given)  # type: ignore[arg-type]
