"""CSV and TSV: the first record names the columns, every other one has as many fields. All values are strings."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hftune.data.readers.base import (
    MAX_RECORD_BYTES,
    Chunk,
    FailedChunk,
    Row,
    RowOrError,
    grouped,
    no_record,
    too_large,
)
from hftune.data.readers.compressed import DecompressionError, read_blocks
from hftune.data.readers.strict_json import decode
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
    records = _records(file, delimiter)
    line, fields = next(records, (1, None))
    header = _header(fields, f"{file}:{line}") if isinstance(fields, list) else fields
    if isinstance(header, DataError):
        yield FailedChunk(header, str(file))
        return
    found = False
    for held in grouped(records, rows_per_chunk, _size):
        yield CsvRecords(str(file), header or (), held)
        found = True
    if not found:
        yield no_record(file)


def _size(record: tuple[int, Fields | DataError]) -> int:
    return sum(map(len, record[1])) if isinstance(record[1], list) else 0


def _lines(file: Path) -> Iterator[str]:
    """Lines with their ends, which a field in quotes keeps."""
    # Bytes that are not UTF-8 come as surrogates, so that their record can be refused alone.
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    held = ""
    for block in read_blocks(file):
        *whole, held = (held + decoder.decode(block)).split("\n")
        yield from (f"{line}\n" for line in whole)
    yield from filter(None, [held + decoder.decode(b"", final=True)])


def _records(file: Path, delimiter: str) -> Iterator[tuple[int, Fields | DataError]]:
    """(line of the start, fields) of each record that is not blank; an error stands where its record would have."""
    csv.field_size_limit(MAX_RECORD_BYTES)  # of the whole process; the default of 128 kB is below many documents
    # strict: a quote inside a field that has none is a fault, and would otherwise move all fields behind it.
    reader = csv.reader(_lines(file), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except DecompressionError as damage:
            yield line, damage.from_line(line)
            return
        except csv.Error as error:
            yield line, _malformed(error, f"{file}:{line}")
            continue
        if fields is None:
            return
        if any(field.strip() for field in fields):
            yield line, fields


def _malformed(error: csv.Error, place: str) -> DataError:
    if "field larger than" in str(error):
        return too_large(place)
    cause = "a quote is opened and never closed" if "unexpected end of data" in str(error) else str(error)
    return DataError(f"malformed CSV: {cause}", place=place, fix=_QUOTES, kind=_MALFORMED)


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
    # One pass over all fields; which of them it was does not matter to who fixes the line.
    text = decode("".join(fields).encode("utf-8", "surrogateescape"), place)
    return text if isinstance(text, DataError) else None
