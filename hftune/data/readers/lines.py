"""Files with a record a line: .txt and .jsonl, plain or compressed.

A chunk of a plain file is only a place in it; whoever parses it reads its own bytes. The parent process only counts
line ends. Decompressing cannot start in the middle, so the chunk of a compressed file carries its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
    unreadable,
)
from hftune.data.readers.compressed import DecompressionError, read_blocks
from hftune.data.readers.strict_json import decode, parse_object
from hftune.errors import DataError
from hftune.opening.files import open_file

_BOM = b"\xef\xbb\xbf"
_NOT_BLANK = re.compile(rb"\S")
_BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class LineRange(Chunk):
    """Whole lines of a plain file, by their place in it."""

    file: str
    offset: int
    size: int
    first_line: int
    is_text: bool

    def rows(self) -> Iterator[RowOrError]:
        """Read the bytes and parse them."""
        # A chunk ends with the line that reaches its limit, so only a line beyond all sizes makes one so large.
        if self.size > MAX_CHUNK_BYTES + MAX_RECORD_BYTES:
            yield from self._one_by_one()
            return
        try:
            with open_file(self.file) as stream:
                stream.seek(self.offset)
                data = stream.read(self.size)
        except OSError as error:
            yield unreadable(self.file, str(error.strerror or error)).error
            return
        # Cut while the run reads it; what is left would end in the middle of a record.
        if len(data) < self.size:
            yield _shrunk(self.file, self.first_line)
            return
        yield from parse_lines(data, self.file, self.first_line, self.is_text)

    def _one_by_one(self) -> Iterator[RowOrError]:
        """The same where one of the lines is too long to be read at all."""
        number, end = self.first_line, self.offset + self.size
        with open_file(self.file) as stream:
            stream.seek(self.offset)
            while stream.tell() < end and (line := stream.readline(MAX_RECORD_BYTES)):
                if len(line) < MAX_RECORD_BYTES:
                    yield from parse_lines(line.removesuffix(b"\n"), self.file, number, self.is_text)
                else:
                    yield too_large(f"{self.file}:{number}")
                    # Passed over in parts, never held as a whole.
                    while line and not line.endswith(b"\n"):
                        line = stream.readline(MAX_CHUNK_BYTES)
                number += 1


@dataclass(frozen=True, slots=True)
class LineBytes(Chunk):
    """Whole lines of a compressed file, with their bytes."""

    file: str
    data: bytes
    first_line: int
    is_text: bool

    def rows(self) -> Iterator[RowOrError]:
        """Parse the bytes."""
        yield from parse_lines(self.data, self.file, self.first_line, self.is_text)


def text_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The lines of a file, each of which is a text, in chunks of at most `rows_per_chunk`; fewer where they are long.

    Raises:
        OSError: From the system.
    """
    return _line_chunks(file, rows_per_chunk, is_text=True)


def json_line_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The same of lines that hold a JSON object each."""
    return _line_chunks(file, rows_per_chunk, is_text=False)


def _line_chunks(file: Path, rows_per_chunk: int, *, is_text: bool) -> Iterator[Chunk]:
    # A file of blank lines has chunks and no record; that is known only at its end.
    found = False
    for chunk, blank in _cut(file, rows_per_chunk, is_text):
        found = found or not blank
        yield chunk
    if not found:
        yield no_record(file)


def _cut(file: Path, rows_per_chunk: int, is_text: bool) -> Iterator[tuple[Chunk, bool]]:
    """Chunks, and whether each is known to hold only white space; that much is known while nothing else was seen."""
    if is_compressed(file):
        yield from _cut_bytes(file, rows_per_chunk, is_text)
        return
    offset, line, blank = 0, 1, True
    for size, lines, empty in _chunk_sizes(_plain_blocks(file), rows_per_chunk):
        blank = blank and empty
        yield LineRange(str(file), offset, size, line, is_text), blank
        offset, line = offset + size, line + lines


def _plain_blocks(file: Path) -> Iterator[bytes]:
    with open_file(file) as stream:
        while block := stream.read(_BLOCK):
            yield block


def _chunk_sizes(blocks: Iterable[bytes], rows_per_chunk: int) -> Iterator[tuple[int, int, bool]]:
    """(bytes, lines, whether blank as far as known) of each chunk: whole lines, but for a last one without an end."""
    size, lines, blank, last_block = 0, 0, True, b""
    for block in blocks:
        blank = blank and _is_blank(block, at_start=not last_block)
        last_block = block
        # numpy finds line ends at the speed of memory; the parent has to keep many workers busy.
        ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 0x0A) + 1
        position, index = 0, 0
        while index < len(ends):
            # The chunk ends with its last permitted line, or with the line that reaches the limit of bytes.
            by_rows = index + rows_per_chunk - lines - 1
            by_size = int(np.searchsorted(ends, position + MAX_CHUNK_BYTES - size))
            last = min(by_rows, by_size)
            if last >= len(ends):
                break
            end = int(ends[last])
            yield size + end - position, lines + last + 1 - index, blank
            position, index, size, lines = end, last + 1, 0, 0
        size, lines = size + len(block) - position, lines + len(ends) - index
    if size:
        yield size, lines + (not last_block.endswith(b"\n")), blank


def _is_blank(data: bytes, at_start: bool) -> bool:
    """Whether there is nothing but white space, and a byte order mark at the start of a file."""
    return not _NOT_BLANK.search(data, len(_BOM) if at_start and data.startswith(_BOM) else 0)


def _cut_bytes(file: Path, rows_per_chunk: int, is_text: bool) -> Iterator[tuple[Chunk, bool]]:
    """Chunks of a compressed file; where it is damaged, the whole lines before the damage and one error."""
    held, line, blank = b"", 1, True
    try:
        blocks = read_blocks(file)
        for block in blocks:
            held += block
            end = held.rfind(b"\n") + 1
            # A line without an end, perhaps made of a few bytes of zeros: dropped before it fills the memory.
            if not end and len(held) > MAX_RECORD_BYTES:
                yield FailedChunk(too_large(f"{file}:{line}"), str(file)), False
                held = _after_line(blocks)
                line += 1
                continue
            # Enough for a whole chunk first; short ones would make as many results to send.
            if end < MAX_CHUNK_BYTES and len(held) < 2 * MAX_CHUNK_BYTES:
                continue
            for chunk, lines in _chunks_of(held[:end], file, line, rows_per_chunk, is_text):
                blank = blank and _is_blank(chunk.data, at_start=line == 1)
                yield chunk, blank
                line += lines
            held = held[end:]
    except DecompressionError as damage:
        # What follows the last line end before the damage may be half a record that parses by chance.
        whole = held[: held.rfind(b"\n") + 1]
        for chunk, lines in _chunks_of(whole, file, line, rows_per_chunk, is_text):
            yield chunk, False
            line += lines
        yield FailedChunk(damage.from_line(line), str(file)), False
        return
    for chunk, _ in _chunks_of(held, file, line, rows_per_chunk, is_text):
        yield chunk, blank and _is_blank(chunk.data, at_start=chunk.first_line == 1)


def _after_line(blocks: Iterator[bytes]) -> bytes:
    """What the first block holds behind a line end; those before are passed over."""
    for block in blocks:
        _, end, rest = block.partition(b"\n")
        if end:
            return rest
    return b""


def _chunks_of(
    data: bytes, file: Path, line: int, rows_per_chunk: int, is_text: bool
) -> Iterator[tuple[LineBytes, int]]:
    """Chunks of bytes in memory, each with its number of lines."""
    start = 0
    for size, lines, _ in _chunk_sizes([data] if data else [], rows_per_chunk):
        yield LineBytes(str(file), data[start : start + size], line, is_text), lines
        start, line = start + size, line + lines


def parse_lines(data: bytes, file: str, first_line: int, is_text: bool) -> Iterator[RowOrError]:
    """A row for each line that is not blank; lines end at \\n only.

    str.splitlines would also cut at U+2028 and others, which occur inside JSON strings.
    """
    if first_line == 1:
        data = data.removeprefix(_BOM)
    if is_text:
        yield from _parse_text(data, file, first_line)
        return
    for number, line in enumerate(data.split(b"\n"), start=first_line):
        if line and not line.isspace():
            yield parse_object(line, file, number, _array_hint(file) if line.lstrip().startswith(b"[") else "")


def _array_hint(file: str) -> str:
    """What to do where a line opens an array: the whole file is one, most likely."""
    name = Path(file).name
    kind = next((kind for kind in (".jsonl", ".ndjson") if kind in name), "")
    return f"If the file is one JSON array, rename it to {name.replace(kind, '.json')}. " if kind else ""


def _parse_text(data: bytes, file: str, first_line: int) -> Iterator[RowOrError]:
    """A row {"text": line} for each line; decoded as a whole where that succeeds."""
    # Decoded once for all lines; only where that fails is it worth to look for the line at fault.
    whole = decode(data, file)
    if isinstance(whole, str):
        for number, text in enumerate(whole.split("\n"), start=first_line):
            if len(text) > MAX_RECORD_BYTES:
                yield too_large(f"{file}:{number}")
            elif text and not text.isspace():
                yield Row({"text": text.rstrip("\r")}, file, number)
        return
    for number, line in enumerate(data.split(b"\n"), start=first_line):
        text_or_error = decode(line, f"{file}:{number}")
        if isinstance(text_or_error, DataError):
            yield text_or_error
        elif text_or_error and not text_or_error.isspace():
            yield Row({"text": text_or_error.rstrip("\r")}, file, number)


def _shrunk(file: str, line: int) -> DataError:
    return DataError(
        "the file became shorter while it was read",
        place=f"{file}:{line}",
        fix="Let nothing write to the data of a run.",
        kind="file changed",
    )
