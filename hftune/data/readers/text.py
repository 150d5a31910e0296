"""Text files, plain or compressed: their bytes, their lines, and chunks of the records that a reader finds in them.

A reader (`text_chunks` here, `json_array`, `csv_table`) only finds where records begin and end; whoever has the chunk
parses them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from hftune.data.readers.base import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    Chunk,
    FailedChunk,
    Row,
    RowOrError,
    is_compressed,
    no_record,
    too_large,
)
from hftune.data.readers.strict_json import decode, parse_object
from hftune.errors import DataError
from hftune.opening.files import open_file

_BOM = b"\xef\xbb\xbf"
_BLOCK = 4 << 20
# Read at once of a compressed file; text becomes 3 to 10 times smaller.
_STORED = 1 << 20
# Bytes that zstd may look back: what `zstd --long=31` writes. The library refuses more than 128 MiB unasked.
_WINDOW = 1 << 31

# What decompresses a member (gzip) or frame (zstd); both libraries decode them through the same calls.
_DECODERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": lambda: zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj(),
}

Record = tuple[int, Any]
"""The line where a record starts, and its bytes or fields; a DataError in place of what cannot be reached."""

Parse = Callable[[Any, str, int], RowOrError | None]
"""From a record, its file and its line; None for one that turns out to be blank."""


@dataclass(frozen=True, slots=True)
class TextRecords(Chunk):
    """Neighbouring records of a text file, and what parses them."""

    file: str
    parse: Parse
    records: tuple[Record, ...]

    def rows(self) -> Iterator[RowOrError]:
        """Parse each record."""
        for line, raw in self.records:
            row = raw if isinstance(raw, DataError) else self.parse(raw, self.file, line)
            if row is not None:
                yield row


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
        lost = FailedChunk(error, str(file))
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
    return record_chunks(file, line_records(file), _parse_json, rows_per_chunk)


def line_records(file: Path) -> Iterator[Record]:
    """The lines that are not blank."""
    for number, line in enumerate(raw_lines(file), start=1):
        if len(line) > MAX_RECORD_BYTES:
            yield number, too_large(f"{file}:{number}")
        elif line and not line.isspace():
            yield number, line


def _parse_text(raw: bytes, file: str, line: int) -> RowOrError | None:
    text = decode(raw, f"{file}:{line}")
    if isinstance(text, DataError):
        return text
    # Blanks beyond ASCII show only in the decoded text.
    return None if text.isspace() else Row({"text": text.rstrip("\r")}, file, line)


def _parse_json(raw: bytes, file: str, line: int) -> RowOrError:
    return parse_object(raw, file, line, _array_hint(file) if raw.lstrip().startswith(b"[") else "")


def _array_hint(file: str) -> str:
    """What to do where a line opens an array: the whole file is one, most likely."""
    name = Path(file).name
    kind = next((kind for kind in (".jsonl", ".ndjson") if kind in name), "")
    return f"If the file is one JSON array, rename it to {name.replace(kind, '.json')}. " if kind else ""


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
    if is_compressed(file):
        yield from _decompressed(file)
        return
    with open_file(file) as stream:
        while block := stream.read(_BLOCK):
            yield block


def _decompressed(file: Path) -> Iterator[bytes]:
    """All members or frames, one after the other."""
    suffix = file.suffix.lower()
    name = {".gz": "gzip", ".zst": "zstd"}[suffix]
    decoder, begun = _DECODERS[suffix](), False
    with open_file(file) as stream:
        while block := stream.read(_STORED):
            found = []
            while block:
                try:
                    found.append(decoder.decompress(block))
                except (zlib.error, zstandard.ZstdError) as error:
                    yield from filter(None, [b"".join(found)])
                    raise DecompressionError(f"damaged {name} file: {error}") from error
                begun, block = True, b""
                if decoder.eof:
                    # gzip allows zeros behind a member; tapes and block devices leave them.
                    block = decoder.unused_data.lstrip(b"\0") if suffix == ".gz" else decoder.unused_data
                    decoder, begun = _DECODERS[suffix](), False
            yield from filter(None, [b"".join(found)])
    # Neither library says so: a file that was cut simply gives no more bytes.
    if begun:
        raise DecompressionError(f"damaged {name} file: it ends before its end marker; the file was cut")
