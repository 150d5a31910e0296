"""Chunks of records to an Arrow file of token ids, in parallel and in constant memory.

An `Encoder` says what a stage makes of its records. Everything else is the same for all stages: records are read and
encoded in worker processes, batch by batch; what cannot be used stops the run, or is dropped and counted.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hftune.data.readers.columns import apply_columns, columns_found
from hftune.data.readers.files import Chunk, Row
from hftune.data.records.unread import take_unread
from hftune.data.tokenizing.counts import Counts
from hftune.data.tokenizing.workers import map_in_order
from hftune.errors import DataError

Ragged = list[np.ndarray]
IDS = pa.list_(pa.int32())
_FILE = "data-00000-of-00001.arrow"

LOOKED_FURTHER = 100_000
"""Records behind the first that cannot be used in which others are counted: a large corpus is not read to its end."""


Keep = Callable[[pa.Schema, Iterable[pa.RecordBatch]], Dataset]
"""Makes a dataset of record batches."""


def keep_in_memory(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Dataset:
    """A `Keep` for few records."""
    return Dataset(pa.Table.from_batches(batches, schema))


class Encoder(ABC):
    """What a stage makes of its records."""

    tokenizer: PreTrainedTokenizerBase
    schema: pa.Schema
    """Columns of the result. `length` (tokens) and `trained` (those with a loss) are summed up for counts."""
    length_flag: ClassVar[str] = "--max_length"
    """What to raise if nothing is left."""
    dummy_kind: ClassVar[str] = "text"
    """What `--dummy_data` generates for it; one of `dummy.KINDS`."""
    row_length: ClassVar[str | None] = None
    """The training argument that says how long packed rows are; None where records are not packed."""

    @classmethod
    @abstractmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: Any) -> Encoder:
        """The encoder that a stage's training arguments ask for."""

    def without_limit(self) -> Encoder:
        """This encoder without a limit on length, for records that are cut while packing."""
        return self

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All that decides the result apart from the records and the tokenizer; plain values, for the fingerprint."""

    @abstractmethod
    def parse(self, row: Row) -> Any:
        """One record, checked, as `encode` wants it.

        Raises:
            DataError: It cannot be used.
        """

    @abstractmethod
    def encode(self, parsed: list[Any], counts: Counts) -> dict[str, list[Any]]:
        """The columns of a batch of records; counts all of them as used or dropped."""

    def finish(self, dataset: Dataset, keep: Keep = keep_in_memory) -> Dataset:
        """A last look at the whole dataset, memory-mapped; by default nothing.

        Args:
            keep: Where other records than those of the dataset go.
        """
        return dataset


def write_tokenised(
    chunks: Iterable[Chunk],
    encoder: Encoder,
    folder: Path,
    *,
    workers: int = 1,
    on_bad_record: str = "error",
    columns: Mapping[str, str] | None = None,
    progress: bool = False,
) -> Counts:
    """Encode all chunks into `folder`, in the layout of `Dataset.save_to_disk`.

    Args:
        workers: Processes that read and encode.
        on_bad_record: "error", or "drop" to count them and continue.
        columns: From `parse_columns`.
        progress: Show a bar on stderr if it takes longer than two seconds.

    Returns:
        What became of the records. `used` may be 0.

    Raises:
        DataError: A record that cannot be used, unless they are dropped: the first, with how many more there are among
            the next `LOOKED_FURTHER` records.
    """
    counts, bad, behind = Counts(), 0, 0
    first: DataError | None = None
    # A partial of a module's function: it reaches the workers by forking, and its encoder with it.
    encode = partial(_encode_chunk, encoder=encoder, drop=on_bad_record == "drop", columns=columns or {})

    def batches() -> Iterator[pa.RecordBatch]:
        with tqdm(unit=" records", desc="tokenising", delay=2, disable=not progress) as bar:
            nonlocal first, bad, behind
            for payload, found, problem in map_in_order(encode, chunks, workers):
                counts.add(found)
                bar.update(found.rows)
                first = first or problem
                if first is not None:
                    bad += sum(found.dropped.values()) if problem else 0
                    behind += found.rows
                    if behind >= LOOKED_FURTHER:
                        break
                    continue
                # Serialised by the worker: one buffer travels between the processes, and no object for each column.
                yield pa.ipc.read_record_batch(payload, encoder.schema)

    try:
        write_batches(folder, encoder.schema, batches())
    except DataError:  # of a later chunk, whose records could not be encoded
        if first is None:
            raise
    if first is not None:
        raise first.among(bad, counts.rows)
    return counts


def write_batches(folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Record batches as a folder that `datasets.load_from_disk` opens, one in memory at a time."""
    # A stream, not a file with a footer: `datasets` memory-maps streams, and a batch need not be held to the end.
    with pa.OSFile(str(folder / _FILE), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    _describe(folder)


def without_counts(dataset: Dataset) -> Dataset:
    """The dataset without its columns `trained` and `begins`, which only counting and dividing want."""
    return dataset.remove_columns([name for name in ("trained", "begins") if name in dataset.column_names])


def _encode_chunk(
    chunk: Chunk, encoder: Encoder, drop: bool, columns: Mapping[str, str]
) -> tuple[pa.Buffer | None, Counts, DataError | None]:
    """A chunk as a serialised record batch, what became of its records, and the first fault that is not dropped."""
    take_unread()  # of what was read for another purpose
    # Parsed first, encoded together: tokenizers are quickest on many texts at once.
    counts, parsed = Counts(), []
    renamed: set[str] = set()
    first: DataError | None = None
    for row in chunk.rows():
        counts.rows += 1
        try:
            if isinstance(row, DataError):
                raise row
            if columns:
                renamed |= columns_found(row, columns)
                row = apply_columns(row, columns)
            parsed.append(encoder.parse(row))
        except DataError as error:
            first = first or (None if drop else error)
            counts.drop(error.kind, error)
    counts.unread, counts.columns = take_unread(), sorted(renamed)
    # Of what is not trained the faults are counted alone.
    payload = None if first else _record_batch(encoder.encode(parsed, counts), encoder.schema).serialize()
    return payload, counts, first


def _record_batch(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not isinstance(kind, pa.ListType):
        return pa.array(values, kind)
    flat = np.concatenate(values) if values else np.zeros(0, dtype=np.int32)
    return lists_of(flat, [len(value) for value in values], kind)


def lists_of(flat: np.ndarray, lengths: Sequence[int] | np.ndarray, kind: pa.ListType = IDS) -> pa.ListArray:
    """Numbers one after the other as lists of these lengths, without a Python object for each number."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat, kind.value_type))


def _describe(folder: Path) -> None:
    """The two small files that `datasets.load_from_disk` wants next to the data."""
    dataset = Dataset.from_file(str(folder / _FILE))
    state: dict[str, Any] = {
        "_data_files": [{"filename": _FILE}],
        # `datasets` wants one; nothing here reads it, since hftune has a cache of its own.
        "_fingerprint": folder.name,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    dataset.info.write_to_directory(str(folder))
