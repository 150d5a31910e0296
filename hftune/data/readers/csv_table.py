"""CSV and TSV: the first record names the columns, every other one has as many fields. All values are strings."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hftune.data.readers.base import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    MAX_VALUES,
    Chunk,
    FailedChunk,
    Row,
    RowOrError,
    no_record,
    too_large,
)
from hftune.data.readers.compressed import DecompressionError, read_blocks
from hftune.data.readers.strict_json import NOT_UTF8, NUL
from hftune.errors import DataError, shown

_RAGGED = "ragged CSV record"
_MALFORMED = "malformed CSV"
_QUOTES = 'A field that holds a comma, a quote or a line break stands in quotes ("), and a quote in it is doubled ("").'

Fields = list[str]


@dataclass(frozen=True, slots=True)
class CsvRecords(Chunk):
    """Fields of records with the lines where they start; an error where the CSV itself is broken."""

    file: str
    columns: tuple[str, ...]
    records: tuple[tuple[int, Fields | DataError], ...]

    def rows(self) -> Iterator[RowOrError]:
        """A row of strings for each record."""
        for line, fields in self.records:
            if isinstance(fields, DataError):
                yield fields
                continue
            fault = _fault(fields, self.columns, f"{self.file}:{line}")
            yield fault or Row(dict(zip(self.columns, fields, strict=True)), self.file, line)


def csv_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records behind the header in chunks of at most `rows_per_chunk`.

    Raises:
        OSError: From the system.
    """
    return _chunks(file, rows_per_chunk, ",")


def tsv_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The same where tabs divide fields."""
    return _chunks(file, rows_per_chunk, "\t")


def _chunks(file: Path, rows_per_chunk: int, delimiter: str) -> Iterator[Chunk]:
    lines = _Lines(file, delimiter)
    columns: tuple[str, ...] | None = None
    held: list[tuple[int, Fields | DataError]] = []
    size, found = 0, False
    for line, fields in _records(lines, delimiter):
        if columns is None:
            header = fields if isinstance(fields, DataError) else _header(fields, f"{file}:{line}")
            if isinstance(header, DataError):
                yield FailedChunk(header, str(file))
                return
            columns = header
            continue
        # An error travels among the records: it stands where its record would have been.
        held.append((line, fields))
        found = True
        size += sum(map(len, fields)) if isinstance(fields, list) else 0
        if len(held) >= rows_per_chunk or size >= MAX_CHUNK_BYTES:
            yield CsvRecords(str(file), columns, tuple(held))
            held, size = [], 0
    if held:
        yield CsvRecords(str(file), columns or (), tuple(held))
    if lines.damage:
        yield FailedChunk(lines.damage, str(file))
    elif not found:
        yield no_record(file)


class _TooLarge(Exception):
    """A record does not end: a quote is open, or the lines are no lines."""


class _Lines:
    """The lines of a file as text, for csv.reader, which keeps line ends inside quotes.

    Bytes that are not UTF-8 come as surrogates, so that their record can be refused alone. Damage to a compressed file
    ends the lines, and is kept in `damage`.
    """

    def __init__(self, file: Path, delimiter: str) -> None:
        self.delimiter = delimiter.encode()
        self.file, self.number = file, 0
        self.damage: DataError | None = None
        self.size, self.commas = 0, 0
        """Characters and delimiters since the record began; `_records` sets them back."""

    def __iter__(self) -> Iterator[str]:
        held = b""
        try:
            for block in read_blocks(self.file):
                held += block
                # Blocks without a line end are binary data, or one line that no reader survives.
                if len(held) > MAX_RECORD_BYTES and b"\n" not in held:
                    raise _TooLarge
                *whole, held = held.split(b"\n")
                for line in whole:
                    yield self._text(line + b"\n")
        except DecompressionError as damage:
            self.damage = damage.from_line(self.number + 1)
            return
        if held:
            yield self._text(held)

    def _text(self, line: bytes) -> str:
        self.number += 1
        if self.number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        self.size += len(line)
        self.commas += line.count(self.delimiter)
        # Counted since the record began: a quote that is never closed makes one record of all that follows.
        if self.size > MAX_RECORD_BYTES or self.commas > MAX_VALUES:
            raise _TooLarge
        # csv.reader takes text only; the bytes come back in `_fault`, where the record is known.
        return line.decode("utf-8", "surrogateescape")


def _records(lines: _Lines, delimiter: str) -> Iterator[tuple[int, Fields | DataError]]:
    """(line of the start, fields) of each record that is not blank."""
    csv.field_size_limit(MAX_RECORD_BYTES)  # of the whole process; the default of 128 kB is below many documents
    # strict: a quote inside a field that has none is a fault, and would otherwise move all fields behind it.
    reader = csv.reader(iter(lines), delimiter=delimiter, strict=True)
    while True:
        line = lines.number + 1
        lines.size, lines.commas = 0, 0
        try:
            fields = next(reader, None)
        except _TooLarge:
            error = too_large(f"{lines.file}:{line}")
            cause = f"{error.cause}; no record behind this line can be read"
            yield line, DataError(cause, place=error.place, fix=_QUOTES, kind=error.kind)
            return
        except csv.Error as error:
            cause = "a quote is opened and never closed" if "unexpected end of data" in str(error) else str(error)
            place = f"{lines.file}:{line}"
            yield line, DataError(f"malformed CSV: {cause}", place=place, fix=_QUOTES, kind=_MALFORMED)
            continue
        if fields is None:
            return
        if any(field.strip() for field in fields):
            yield line, fields


def _header(fields: Fields, place: str) -> tuple[str, ...] | DataError:
    """The names of the columns: text, all there, all different."""
    # Spreadsheets write `prompt, response`.
    names = [name.strip() for name in fields]
    fault = _fault(fields, tuple(fields), place)
    if fault:
        return fault
    if len(set(names)) < len(names) or "" in names:
        wrong = next((name for name in names if names.count(name) > 1), "") or "an empty name"
        return DataError(
            f"the header must name every column once, found {shown(names, 200)} ({shown(wrong)})",
            place=place,
            fix="The first line of a CSV file names its columns, such as prompt,response.",
            kind="bad CSV header",
        )
    return tuple(names)


def _fault(fields: Fields, columns: tuple[str, ...], place: str) -> DataError | None:
    """What is wrong with the fields of a record, if anything."""
    if len(fields) != len(columns):
        return DataError(
            f"the record has {len(fields)} fields, the header {len(columns)}", place=place, fix=_QUOTES, kind=_RAGGED
        )
    joined = "".join(fields)
    if "\x00" in joined:
        fix = "The file is damaged or not UTF-8 text; copy it again."
        return DataError("a NUL byte in the text", place=place, fix=fix, kind=NUL)
    try:
        # One pass over all fields; which of them it was does not matter to who fixes the line.
        joined.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(joined[error.start]) - 0xDC00
        fix = "Save the file as UTF-8, for example with `iconv -f GB18030 -t UTF-8` or `iconv -f UTF-16 -t UTF-8`."
        return DataError(f"not UTF-8: byte 0x{byte:02x}", place=place, fix=fix, kind=NOT_UTF8)
    return None
