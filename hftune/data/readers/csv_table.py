"""CSV and TSV: the first record names the columns, every other one has as many fields. All values are strings."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hftune.data.readers.base import (
    MAX_RECORD_BYTES,
    Chunk,
    FailedChunk,
    Row,
    RowOrError,
    too_large,
)
from hftune.data.readers.strict_json import decode
from hftune.data.readers.text import Record, raw_lines, record_chunks
from hftune.errors import DataError, shown

_RAGGED = "ragged CSV record"
_MALFORMED = "malformed CSV"
_QUOTES = 'A field that holds a comma, a quote or a line break stands in quotes ("), and a quote in it is doubled ("").'

Fields = list[str]


def csv_chunks(file: Path, rows_per_chunk: int, delimiter: str = ",") -> Iterator[Chunk]:
    """The records behind the header in chunks of at most `rows_per_chunk`.

    Raises:
        OSError: From the system.
    """
    records = _records(file, delimiter)
    try:
        line, fields = next(records, (1, []))
        columns = fields if isinstance(fields, DataError) or not fields else _header(fields, f"{file}:{line}")
    except DataError as error:
        columns = error
    if isinstance(columns, DataError):
        yield FailedChunk(columns, str(file))
        return
    yield from record_chunks(file, records, partial(_row, columns), rows_per_chunk)


def tsv_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The same where tabs divide fields."""
    return csv_chunks(file, rows_per_chunk, "\t")


def _records(file: Path, delimiter: str) -> Iterator[Record]:
    """The fields of each record that is not blank; an error stands where its record would have."""
    csv.field_size_limit(MAX_RECORD_BYTES)  # of the whole process; the default of 128 kB is below many documents
    # Bytes that are not UTF-8 come as surrogates, so that their record can be refused alone.
    lines = (f"{line.decode('utf-8', 'surrogateescape')}\n" for line in raw_lines(file))
    # strict: a quote inside a field that has none is a fault, and would otherwise move all fields behind it.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield line, _malformed(error, f"{file}:{line}")
            continue
        if fields is None:
            return
        if any(field.strip() for field in fields):
            yield line, fields


def _row(columns: Fields, fields: Fields, file: str, line: int) -> RowOrError:
    fault = _fault(fields, len(columns), f"{file}:{line}")
    return fault or Row(dict(zip(columns, fields, strict=True)), file, line)


def _malformed(error: csv.Error, place: str) -> DataError:
    if "field larger than" in str(error):
        return too_large(place)
    cause = "a quote is opened and never closed" if "unexpected end of data" in str(error) else str(error)
    return DataError(f"malformed CSV: {cause}", place=place, fix=_QUOTES, kind=_MALFORMED)


def _header(fields: Fields, place: str) -> Fields | DataError:
    """The names of the columns: text, all there, all different."""
    # Spreadsheets write `prompt, response`.
    names = [name.strip() for name in fields]
    if fault := _fault(fields, len(fields), place):
        return fault
    if len(set(names)) < len(names) or "" in names:
        wrong = next((name for name in names if names.count(name) > 1), "") or "an empty name"
        return DataError(
            f"the header must name every column once, found {shown(names, 200)} ({shown(wrong)})",
            place=place,
            fix="The first line of a CSV file names its columns, such as prompt,response.",
            kind="bad CSV header",
        )
    return names


def _fault(fields: Fields, columns: int, place: str) -> DataError | None:
    """What is wrong with the fields of a record, if anything."""
    if len(fields) != columns:
        return DataError(
            f"the record has {len(fields)} fields, the header {columns}", place=place, fix=_QUOTES, kind=_RAGGED
        )
    whole = "".join(fields)
    if len(whole) > MAX_RECORD_BYTES:
        return too_large(place)
    # One pass over all fields; which of them it was does not matter to who fixes the line.
    text = decode(whole.encode("utf-8", "surrogateescape"), place)
    return text if isinstance(text, DataError) else None
