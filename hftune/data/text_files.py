"""Text files, plain or compressed: their bytes, their lines, and chunks of the records that a reader finds in them.

A reader only finds where records begin and end; whoever has the chunk parses them.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hftune.data.files import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    Chunk,
    FailedChunk,
    Row,
    RowOrError,
    is_compressed,
    no_record,
    suffix_of,
    too_large,
)
from hftune.data.strict_json import MALFORMED, decode, parse_object
from hftune.errors import DataError, shown
from hftune.opening.files import open_file

_BOM = b"\xef\xbb\xbf"
_BLOCK = 4 << 20
_PART = 1 << 10
Record = tuple[int, Any]
"""The line where a record starts, and its bytes or fields; a DataError in place of what cannot be reached."""

Parse = Callable[[Any], dict[str, Any] | None]
"""Gives a record its columns, or raises a DataError; None for one that turns out to be blank."""


@dataclass(frozen=True, slots=True)
class TextRecords(Chunk):
    """Neighbouring records of a text file, and what parses them."""

    file: str
    parse: Parse
    records: tuple[Record, ...]

    def rows(self) -> Iterator[RowOrError]:
        """Parse each record."""
        for line, raw in self.records:
            try:
                if isinstance(raw, DataError):
                    raise raw
                value = self.parse(raw)
            except DataError as error:
                yield error.at(f"{self.file}:{line}")
                continue
            if value is not None:
                yield Row(value, self.file, line)


def record_chunks(file: Path, records: Iterator[Record], parse: Parse, most: int) -> Iterator[Chunk]:
    """The records of a text file in chunks of at most `most`, fewer where they are long; without any, one error.

    Args:
        records: A DataError that it raises stands for all records from there on.
    """
    held: list[Record] = []
    size, found, lost = 0, False, None
    try:
        for record in records:
            held.append(record)
            size, found = size + _size(record[1]), True
            if len(held) >= most or size >= MAX_CHUNK_BYTES:
                yield TextRecords(str(file), parse, tuple(held))
                held, size = [], 0
    except DataError as error:
        lost = FailedChunk(error)
    if held:
        yield TextRecords(str(file), parse, tuple(held))
    if lost or not found:
        yield lost or no_record(file)


def _size(raw: Any) -> int:
    """Bytes of a record, or characters of the fields of one."""
    if isinstance(raw, bytes):
        return len(raw)
    return 0 if isinstance(raw, DataError) else sum(map(len, raw))


# --- a record a line ----------------------------------------------------------------------------------------------


def text_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The lines of a file, each of which is a text, in chunks of at most `rows_per_chunk`; fewer where they are long.

    Raises:
        OSError: From the system.
    """
    return record_chunks(file, line_records(file), _parse_text, rows_per_chunk)


def json_line_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The same of lines that hold a JSON object each."""
    return record_chunks(file, line_records(file), parse_object, rows_per_chunk)


def line_records(file: Path) -> Iterator[Record]:
    """The lines that are not blank."""
    for number, line in enumerate(raw_lines(file), start=1):
        if len(line) > MAX_RECORD_BYTES:
            yield number, too_large()
        elif line and not line.isspace():
            yield number, line


def _parse_text(raw: bytes) -> dict[str, Any] | None:
    text = decode(raw)
    # Blanks beyond ASCII show only in the decoded text.
    return None if text.isspace() else {"text": text.rstrip("\r")}


# --- lines and bytes ----------------------------------------------------------------------------------------------


def raw_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file without their ends, which are \\n only: splitlines would also cut at U+2028 inside a record.

    Of a line beyond all sizes, perhaps made of a few bytes of zeros, only the first `MAX_RECORD_BYTES` + 1 bytes come.

    Raises:
        DataError: After the whole lines before damage: what follows may be half a record that parses by chance.
        OSError: From the system.
    """
    held, mark, number = b"", _BOM, 1
    try:
        for block in read_blocks(file):
            *whole, rest = block.split(b"\n")
            for part in whole:
                yield (held + part)[: MAX_RECORD_BYTES + 1].removeprefix(mark)
                held = mark = b""
                number += 1
            held = (held + rest)[: MAX_RECORD_BYTES + 1]
    except DecompressionError as damage:
        raise damaged(file, number, str(damage)) from damage
    if held:
        yield held.removeprefix(mark)


class DecompressionError(Exception):
    """The compressed file cannot be read any further."""


def damaged(file: Path, line: int, cause: str) -> DataError:
    """The error for records behind damage in a compressed file, of which the first lost one would be on this line."""
    return DataError(
        f"{cause}; all records from line {line} on are lost",
        place=f"{file}:{line}",
        fix="Compress or copy the file again.",
        kind="damaged file",
    )


def read_blocks(file: Path) -> Iterator[bytes]:
    """The plain bytes of a file in blocks of some megabytes, never empty.

    Raises:
        DecompressionError: After all that can be decompressed was given.
        OSError: From the system.
    """
    with open_file(file) as stream:
        if not is_compressed(file):
            while block := stream.read(_BLOCK):
                yield block
            return
        kind = "gzip" if file.suffix.lower() == ".gz" else "zstd"
        damage: Exception | None = None
        # All members or frames, one after the other; one that was cut is an error.
        with pa.CompressedInputStream(stream, kind) as plain:
            while damage is None:
                parts: list[bytes] = []
                try:
                    # Little at a time: what is read together with damage is lost.
                    while len(parts) < max(1, _BLOCK // _PART) and (part := plain.read(_PART)):
                        parts.append(part)
                except (OSError, pa.ArrowException) as error:
                    damage = error
                if parts:
                    yield b"".join(parts)
                elif damage is None:
                    return
        raise DecompressionError(f"damaged {kind} file: {damage}") from damage


# --- CSV and TSV: the first record names the columns, every other one has as many fields; all values are strings ---

_QUOTES = 'A field that holds a comma, a quote or a line break stands in quotes ("), and a quote in it is doubled ("").'

Fields = list[str]


def csv_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records behind the header in chunks of at most `rows_per_chunk`; tabs divide the fields of .tsv files.

    Raises:
        OSError: From the system.
    """
    records = _csv_records(file, "\t" if suffix_of(file) == ".tsv" else ",")
    line = 1
    try:
        line, fields = next(records, (1, []))
        if isinstance(fields, DataError):
            raise fields
        columns = _header(fields) if fields else []
    except DataError as error:
        yield FailedChunk(error if error.place else error.at(f"{file}:{line}"))
        return
    yield from record_chunks(file, records, partial(_row, columns), rows_per_chunk)


def _csv_records(file: Path, delimiter: str) -> Iterator[Record]:
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
            yield line, _malformed(error)
            continue
        if fields is None:
            return
        if any(field.strip() for field in fields):
            yield line, fields


def _row(columns: Fields, fields: Fields) -> dict[str, Any]:
    return dict(zip(columns, _checked(fields, len(columns)), strict=True))


def _malformed(error: csv.Error) -> DataError:
    if "field larger than" in str(error):
        return too_large()
    cause = "a quote is opened and never closed" if "unexpected end of data" in str(error) else str(error)
    return DataError(f"malformed CSV: {cause}", fix=_QUOTES, kind="malformed CSV")


def _header(fields: Fields) -> Fields:
    """The names of the columns: text, all there, all different."""
    # Spreadsheets write `prompt, response`.
    names = [name.strip() for name in _checked(fields, len(fields))]
    if len(set(names)) < len(names) or "" in names:
        wrong = next((name for name in names if names.count(name) > 1), "") or "an empty name"
        raise DataError(
            f"the header must name every column once, found {shown(names, 200)} ({shown(wrong)})",
            fix="The first line of a CSV file names its columns, such as prompt,response.",
            kind="bad CSV header",
        )
    return names


def _checked(fields: Fields, columns: int) -> Fields:
    """The fields of a record, if nothing is wrong with them."""
    if len(fields) != columns:
        cause = f"the record has {len(fields)} fields, the header {columns}"
        raise DataError(cause, fix=_QUOTES, kind="ragged CSV record")
    whole = "".join(fields)
    if len(whole) > MAX_RECORD_BYTES:
        raise too_large()
    # One pass over all fields; which of them it was does not matter to who fixes the line.
    decode(whole.encode("utf-8", "surrogateescape"))
    return fields


# --- JSON arrays --------------------------------------------------------------------------------------------------

# Numbers stay text: only the end of a record matters here.
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
# A comma too many loses nothing.
_BETWEEN = re.compile(r"[ \t\r\n,]*")
# Bytes that are not UTF-8 travel through text as surrogates, so that the record that holds them can be refused alone.
_ESCAPE = "surrogateescape"


def json_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records of a .json file in chunks. If its first line is a whole object, it holds JSON lines.

    Raises:
        OSError: From the system.
    """
    if _begins_with_an_object_on_a_line(file):
        yield from json_line_chunks(file, rows_per_chunk)
    else:
        yield from record_chunks(file, _json_records(file), parse_object, rows_per_chunk)


def _begins_with_an_object_on_a_line(file: Path) -> bool:
    try:
        # An array may be one line of gigabytes: what begins with a bracket is not looked at any further.
        if not next(read_blocks(file), b"").lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            return False
        _, line = next(line_records(file))
        return isinstance(line, bytes) and isinstance(_DECODER.decode(line.decode()), dict)
    except (ValueError, RecursionError, DecompressionError, DataError):
        return False


def _json_records(file: Path) -> Iterator[Record]:
    """The bytes of each record of an array, or of objects one after the other over any number of lines.

    Raises:
        DataError: Behind the last one whose end can be found.
    """
    text, damage = _text(file)
    at, line, reached = _behind(text, 0), 1, 0
    closed = not text.startswith("[", at)
    at = at if closed else _behind(text, at + 1)
    cause = ""
    while not cause and (at < len(text) or not closed):
        line, reached = line + text.count("\n", reached, at), at
        if not closed and text.startswith("]", at):
            closed, at = True, _behind(text, at + 1)
            cause = "there is more behind the array" if at < len(text) else ""
            continue
        try:
            after = _DECODER.raw_decode(text, at)[1]
        except RecursionError:
            cause = "nested too deep to find the end of the record"
        except json.JSONDecodeError as error:
            found = text[error.pos : error.pos + 1]
            cause = f"{error.msg}, found {repr(found) if found else 'the end of the file'}"
        else:
            yield line, text[at:after].encode("utf-8", _ESCAPE)
            at = _behind(text, after)
    if damage:
        raise damaged(file, line, damage)
    if cause:
        raise DataError(
            f"malformed JSON: {cause}; no record behind this line can be read",
            place=f"{file}:{line}",
            fix="Fix the file; a .json file holds one array of objects (or one object a line).",
            kind=MALFORMED,
        )


def _text(file: Path) -> tuple[str, str]:
    """What a file holds, and what ends it early if it is damaged."""
    blocks: list[bytes] = []
    damage = ""
    try:
        blocks.extend(read_blocks(file))
    except DecompressionError as error:
        damage = str(error)  # what came before it is there
    return b"".join(blocks).decode("utf-8-sig", _ESCAPE), damage


def _behind(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at
