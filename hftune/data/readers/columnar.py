"""Parquet and Arrow (files, streams, and what `datasets` saves): some hundred records at a time, never a whole file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hftune.data.readers.base import MAX_CHUNK_BYTES, Chunk, Failed, Read, Row, no_record
from hftune.errors import DataError

# What pyarrow raises for values that have no counterpart in Python: dates beyond year 9999, nanoseconds, broken UTF-8.
_NO_PYTHON_VALUE = (pa.ArrowException, ValueError, OverflowError)
_ARROW_MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True)
class ArrowRecords(Chunk):
    """Neighbouring records as an Arrow stream in memory, from which they are made without copying."""

    file: str
    stream: bytes
    first: int

    def rows(self) -> Iterator[Read]:
        """A row for each record."""
        batch = pa.ipc.open_stream(self.stream).read_all()
        nested = [name for name in batch.column_names if _has_struct(batch.schema.field(name).type)]
        for number, value in enumerate(_values(batch), start=self.first):
            if isinstance(value, Exception):
                yield _no_value(value, f"{self.file}:{number}")
                continue
            for name in nested:
                value[name] = _without_nulls(value[name])
            yield Row(value, self.file, number)


def parquet_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records of a Parquet file in chunks.

    Raises:
        OSError: From the system.
    """
    try:
        with pq.ParquetFile(file) as source:
            fault = _bad_columns(source.schema_arrow, file)
            batches = source.iter_batches(batch_size=rows_per_chunk, use_threads=False)
            yield from [fault] if fault else _chunks(batches, file, rows_per_chunk)
    except pa.ArrowException as error:
        yield _corrupt(file, "Parquet", error)


def arrow_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records of an Arrow file or stream in chunks, through a memory map.

    Raises:
        OSError: From the system.
    """
    try:
        with pa.memory_map(str(file)) as source:
            is_file = source.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
            source.seek(0)
            reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            fault = _bad_columns(reader.schema, file)
            yield from [fault] if fault else _chunks(_batches(reader), file, rows_per_chunk)
    except pa.ArrowException as error:
        yield _corrupt(file, "Arrow", error)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """The batches of either kind of reader, one at a time."""
    if hasattr(reader, "num_record_batches"):
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
    else:
        yield from reader


def _chunks(batches: Iterator[pa.RecordBatch], file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """Chunks of at most `rows_per_chunk` records. A batch that cannot be read ends them with one error."""
    first = 1
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            yield _corrupt(file, "data", error, first)
            return
        if batch is None:
            break
        step = _step(batch, rows_per_chunk)
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            yield ArrowRecords(str(file), _serialised(part), first)
            first += part.num_rows
    if first == 1:
        yield no_record(file)


def _step(batch: pa.RecordBatch, rows_per_chunk: int) -> int:
    """Records a chunk, so that it stays moderate."""
    bytes_a_row = batch.nbytes / max(1, batch.num_rows)
    return max(1, min(rows_per_chunk, int(MAX_CHUNK_BYTES / max(1.0, bytes_a_row))))


def _serialised(batch: pa.RecordBatch) -> bytes:
    """The batch as a stream. Pickling it would carry all of the memory that it is a slice of."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _values(batch: pa.Table) -> Iterator[dict[str, Any] | Exception]:
    """Each record as a dict, or why it cannot be one."""
    try:
        yield from batch.to_pylist()
        return
    except _NO_PYTHON_VALUE:
        pass  # one of them is at fault; below it is found
    for index in range(batch.num_rows):
        try:
            yield batch.slice(index, 1).to_pylist()[0]
        except _NO_PYTHON_VALUE as error:
            yield error


def _has_struct(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return True
    return hasattr(kind, "value_type") and _has_struct(kind.value_type)


def _without_nulls(value: Any) -> Any:
    """Nested objects without their nulls: Arrow gives each object the fields of all, null where it had none."""
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    return value


def _bad_columns(schema: pa.Schema, file: Path) -> Failed | None:
    """Two columns of one name would be one key."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if not twice:
        return None
    cause = f"two columns have the same name: {', '.join(twice)}"
    return Failed(DataError(cause, place=str(file), fix="Rename one of them.", kind="duplicate key"), str(file))


def _no_value(error: Exception, place: str) -> DataError:
    return DataError(
        f"a value that cannot be read: {error}",
        place=place,
        fix="Mend it, or leave its column out; text, numbers, lists and objects are read.",
        kind="unreadable value",
    )


def _corrupt(file: Path, kind: str, error: Exception, first: int | None = None) -> Failed:
    lost = f"; all records from number {first} on are lost" if first and first > 1 else ""
    place = f"{file}:{first}" if first else str(file)
    cause = f"damaged {kind} file: {str(error).splitlines()[0] if str(error) else type(error).__name__}{lost}"
    return Failed(DataError(cause, place=place, fix="Copy or write the file again.", kind="damaged file"), str(file))
