"""Parquet and Arrow (files, streams, and what `datasets` saves): some hundred records at a time, never a whole file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hftune.data.files import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    Chunk,
    FailedChunk,
    Row,
    RowOrError,
    no_record,
    suffix_of,
    too_large,
)
from hftune.data.strict_json import loads
from hftune.errors import DataError, shown
from hftune.opening.files import open_file

# What pyarrow raises for values that have no counterpart in Python: dates beyond year 9999, nanoseconds, broken UTF-8.
_NO_PYTHON_VALUE = (pa.ArrowException, ValueError, OverflowError)
_ARROW_MAGIC = b"ARROW1"
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class ArrowRecords(Chunk):
    """Neighbouring records as an Arrow stream in memory, from which they are made without copying."""

    file: str
    stream: bytes
    first: int

    def table(self) -> pa.Table:
        """The records as a table."""
        # In the worker: the parent has sent the bytes as they are.
        return pa.ipc.open_stream(self.stream).read_all()

    def rows(self) -> Iterator[RowOrError]:
        """A row for each record."""
        batch = self.table()
        changes = {name: change for name in batch.column_names if (change := _change(batch.schema.field(name).type))}
        values: list[dict[str, Any]] | None = None
        # All at once, which is several times as quick as row by row; where one is at fault, it is found below.
        with suppress(*_NO_PYTHON_VALUE):
            values = batch.to_pylist()
        for index in range(batch.num_rows):
            try:
                value = batch.slice(index, 1).to_pylist()[0] if values is None else values[index]
                value |= {name: change(value[name]) for name, change in changes.items()}
            except (*_NO_PYTHON_VALUE, DataError) as error:
                cause = error.cause if isinstance(error, DataError) else error
                yield _no_value(cause, f"{self.file}:{self.first + index}")
            else:
                yield Row(value, self.file, self.first + index)


@contextmanager
def _open_parquet(file: Path, most: int) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    # Pages are read as they are needed: a row group may have gigabytes.
    with pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER) as source:
        groups = [source.metadata.row_group(number) for number in range(source.num_row_groups)]
        at_once = min((_step(about.total_byte_size, about.num_rows, most) for about in groups), default=1)
        # One thread: Arrow's pool would decode all columns at once, and does not survive the fork of workers.
        yield source.schema_arrow, source.iter_batches(at_once, use_threads=False)


@contextmanager
def _open_arrow(file: Path) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    # As `datasets` reads it: a file may be one batch.
    with pa.memory_map(str(file)) as source:
        is_file = source.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
        else:
            stream = pa.ipc.open_stream(source)
            yield stream.schema, iter(stream)


def table_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records of a Parquet file, an Arrow file or an Arrow stream in chunks of at most `rows_per_chunk`.

    A batch that cannot be read ends them with one error.

    Raises:
        OSError: From the system.
    """
    kind = "Parquet" if suffix_of(file) == ".parquet" else "Arrow"
    open_file(file).close()  # pyarrow would wait for a FIFO
    first = 1
    try:
        with _open_parquet(file, rows_per_chunk) if kind == "Parquet" else _open_arrow(file) as (schema, batches):
            if fault := _bad_columns(schema, file):
                yield fault
                return
            for batch in batches:
                step = _step(batch.get_total_buffer_size(), batch.num_rows, rows_per_chunk)
                for start in range(0, batch.num_rows, step):
                    yield from _checked(batch.slice(start, step), file, first + start)
                first += batch.num_rows
                del batch  # not two of them at once
    except (pa.ArrowException, OSError) as error:
        yield _corrupt(file, kind, error, first)
        return
    if first == 1:
        yield no_record(file)


def _checked(batch: pa.RecordBatch, file: Path, first: int) -> Iterator[Chunk]:
    """The batch as one chunk if it is sound and not too large, else a chunk or an error for each record.

    Arrow trusts the file: an offset that a flipped bit has made too large would end the process, not raise.
    """
    try:
        # Every offset and every character: `validate()` alone looks at sizes only.
        batch.validate(full=True)
        if batch.nbytes > MAX_RECORD_BYTES:
            raise too_large(f"{file}:{first}")
        yield ArrowRecords(str(file), _serialised(batch), first)
    except (pa.ArrowInvalid, DataError) as error:
        if batch.num_rows == 1:
            yield FailedChunk(error if isinstance(error, DataError) else _no_value(error, f"{file}:{first}"))
        else:
            for index in range(batch.num_rows):
                yield from _checked(batch.slice(index, 1), file, first + index)


def _step(size: int, rows: int, most: int) -> int:
    """Records to take at once of some that have so many bytes, so that a chunk stays moderate on average."""
    return max(1, min(most, MAX_CHUNK_BYTES * rows // max(1, size)))


def _serialised(batch: pa.RecordBatch) -> bytes:
    """The batch as a stream. Pickling it would carry all of the memory that it is a slice of."""
    # Nor is a dictionary sent along with each slice.
    columns = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in batch.columns]
    batch, sink = pa.RecordBatch.from_arrays(columns, batch.schema.names), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


Change = Callable[[Any], Any]


def _change(kind: pa.DataType) -> Change | None:
    """What has to be done to the values of a type after turning them into Python; None for nothing.

    Objects lose their nulls: Arrow gives each object the fields of all, null where it had none. What `datasets` stores
    as JSON, because its records differ in type, is decoded.
    """
    # What `datasets` 4 and later write for columns whose values differ in type.
    if isinstance(kind, pa.JsonType):
        return lambda value: None if value is None else loads(value.encode("utf-8"))
    if pa.types.is_struct(kind):
        changes = {field.name: _change(field.type) for field in kind}
        return partial(_change_object, changes=changes)
    if pa.types.is_map(kind) or not hasattr(kind, "value_type"):
        return None
    inner = _change(kind.value_type)
    if inner is None or pa.types.is_dictionary(kind):
        return inner
    return lambda value: None if value is None else [inner(part) for part in value]


def _change_object(value: dict[str, Any] | None, changes: dict[str, Change | None]) -> dict[str, Any] | None:
    if value is None:
        return None
    # An absent key and null mean the same in every format that is read.
    present = {key: part for key, part in value.items() if part is not None}
    return {key: change(part) if (change := changes[key]) else part for key, part in present.items()}


def _bad_columns(schema: pa.Schema, file: Path) -> FailedChunk | None:
    """Two columns of one name would be one key."""
    twice = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if not twice:
        return None
    cause = f"two columns have the same name: {', '.join(twice)}"
    return FailedChunk(DataError(cause, place=str(file), fix="Rename one of them.", kind="duplicate key"))


def _no_value(error: object, place: str) -> DataError:
    return DataError(
        f"a value that cannot be read: {shown(error, 300)}",
        place=place,
        fix="Fix it, or leave its column out; text, numbers, lists and objects are read.",
        kind="unreadable value",
    )


def _corrupt(file: Path, kind: str, error: Exception, first: int) -> FailedChunk:
    # pyarrow's own complaints about what it reads are OSErrors, too, but without a number of the system's.
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    lost = f"; the records from number {first} on are lost" if first > 1 else ""
    cause = f"damaged {kind} file: {shown(error, 300) or type(error).__name__}{lost}"
    place = f"{file}:{first}" if first > 1 else str(file)
    return FailedChunk(DataError(cause, place=place, fix="Copy or write the file again.", kind="damaged file"))
