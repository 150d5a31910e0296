"""Chunks of records to an Arrow file of token ids, in parallel and in constant memory.

An `Encoder` says what a stage makes of its records. Everything else is the same for all stages: records are read and
encoded in worker processes, batch by batch; what cannot be used stops the run, or is dropped and counted.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hftune.data.columns import apply_columns, columns_found
from hftune.data.counts import Counts
from hftune.data.files import Chunk, Row
from hftune.data.formats import take_unread
from hftune.errors import DataError

In = TypeVar("In")
Out = TypeVar("Out")

_PR_SET_PDEATHSIG = 1

AHEAD = 4
"""Items under way for each worker: enough to keep it busy, few enough to keep memory flat."""

WORTH_WORKERS = 8
"""Below this number of items, starting processes costs more than it saves."""

_function: Callable[[Any], Any] | None = None


def default_workers() -> int:
    """As many as there are cores for this process, at most 16: past that one reader cannot feed them."""
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def map_in_order(function: Callable[[In], Out], items: Iterable[In], workers: int) -> Iterator[Out]:
    """`function` of each item, in the order of the items.

    Args:
        function: Reaches the workers by forking, so it need not be picklable; items and results must be.
        items: Read as they are needed, `AHEAD` items a worker in advance.
        workers: Processes. Few items, and systems that cannot fork, are served in this process.

    Raises:
        Whatever `function` or `items` raise, at the place in the order where it happened.
    """
    source = iter(items)
    first = list(islice(source, WORTH_WORKERS))
    # A spawned process would run the user's script again up to its main guard; only forking is safe to do unasked.
    if workers <= 1 or len(first) < WORTH_WORKERS or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(function, chain(first, source))
        return
    yield from _forked(function, chain(first, source), workers)


def _forked(function: Callable[[In], Out], items: Iterator[In], workers: int) -> Iterator[Out]:
    global _function
    _function = function
    # The tokenizer, its template and what they have remembered reach the workers without being pickled.
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread)
    waiting: deque[Future[Out]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_call, item))
            # Waiting for the oldest keeps results in order, and bounds how many are in memory.
            if len(waiting) >= AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Also where the caller stops early, on the first bad record: what still waits need not be encoded.
        pool.shutdown(cancel_futures=True)
        _function = None


def _call(item: Any) -> Any:
    assert _function is not None, "set before the fork"
    return _function(item)


def _one_thread() -> None:
    """Each worker is one process on one core; the tokenizer's threads do not survive a fork anyway."""
    _end_with_the_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # What the parent has loaded stays, so the collector need not look through it again and again.
    gc.freeze()


def _end_with_the_parent() -> None:
    """Have the system end this process when its parent is killed; it would wait for work for ever."""
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


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

    def parse(self, row: Row) -> Any:
        """One record, checked, as `encode` wants it.

        Raises:
            DataError: It cannot be used, with the place of the record.
        """
        try:
            return self.read(row)
        except DataError as error:
            raise error.at(row.origin) from error

    @abstractmethod
    def read(self, row: Row) -> Any:
        """What `parse` returns; faults need not know the place of the record."""

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
    if first:  # of what is not trained the faults are counted alone
        return None, counts, first
    made = encoder.encode(parsed, counts)
    arrays = [_array(made[field.name], field.type) for field in encoder.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=encoder.schema).serialize(), counts, None


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
