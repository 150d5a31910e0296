"""Tokenised folders made on the spot. Every token of a corpus is another number, so that each can be accounted for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, List, Value

from hftune.data.documents import Documents


def write_corpus(folder: Path, lengths: Sequence[int], first_token: int = 0, rows_per_chunk: int = 1000) -> Path:
    """Save documents of these lengths, whose tokens count up from `first_token` through all documents."""
    starts = first_token + np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    documents = [np.arange(begin, end, dtype=np.int32) for begin, end in itertools.pairwise(starts)]

    def rows():
        yield from ({"input_ids": document} for document in documents)

    features = Features({"input_ids": List(Value("int32"))})
    cache = folder.parent / ".generator"
    dataset = Dataset.from_generator(
        rows, features=features, cache_dir=str(cache), fingerprint=folder.name, writer_batch_size=rows_per_chunk
    )
    dataset.save_to_disk(folder)
    return folder


class InMemory(Documents):
    """Documents without files, for properties over many random corpora; chunks of `rows` documents."""

    def __init__(self, name: str, lengths: Sequence[int], first_token: int = 0, rows: int = 3) -> None:
        import pyarrow as pa

        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
        values = np.arange(first_token, first_token + ends[-1], dtype=np.int32)
        whole = pa.ListArray.from_arrays(pa.array(ends), pa.array(values))
        self._made = [whole.slice(start, rows) for start in range(0, len(lengths), rows)]
        super().__init__(f"memory/{name}", name)

    def _open(self):
        return self._made
