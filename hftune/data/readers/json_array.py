"""A .json file: one array of objects, or objects that follow each other. Read as a stream, a window of text at a time.

Only the borders of the records are found here; each record is parsed strictly in its chunk. Where a border cannot be
found, the rest of the file is lost, and one error says so.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from hftune.data.readers.base import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    MAX_VALUES,
    Chunk,
    FailedChunk,
    RowOrError,
    no_record,
)
from hftune.data.readers.compressed import DecompressionError, read_blocks
from hftune.data.readers.lines import json_line_chunks
from hftune.data.readers.strict_json import MALFORMED, parse_object
from hftune.errors import DataError

# Numbers stay text: only the end of a record matters here, and an endless number must not cost anything.
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
_NOT_BLANK = re.compile(r"[^ \t\r\n]")
_FIRST_LINE = 16 << 20
_MANY = 16 << 20
# Bytes that are not UTF-8 travel through text as surrogates, so that the record that holds them can be refused alone.
_ESCAPE = "surrogateescape"


@dataclass(frozen=True, slots=True)
class JsonRecords(Chunk):
    """Records with the lines where they start."""

    file: str
    records: tuple[tuple[int, bytes], ...]

    def rows(self) -> Iterator[RowOrError]:
        """Parse each record."""
        for line, raw in self.records:
            yield parse_object(raw, self.file, line)


class _Broken(Exception):
    """No record ends behind this line."""

    def __init__(self, cause: str, line: int) -> None:
        self.cause, self.line = cause, line
        super().__init__(cause)


def json_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records of a .json file in chunks. If its first line is a whole object, it holds JSON lines.

    Raises:
        OSError: From the system.
    """
    if _starts_with_an_object_on_a_line(file):
        yield from json_line_chunks(file, rows_per_chunk)
        return
    window = _Window(file)
    held: list[tuple[int, bytes]] = []
    size, found = 0, False
    failed: DataError | None = None
    records = _records(window)
    while True:
        try:
            record = next(records, None)
        except _Broken as broken:
            failed = _malformed(file, broken)
            record = None
        except DecompressionError as damage:
            failed = damage.from_line(window.line)
            record = None
        if record is not None:
            held.append(record)
            size, found = size + len(record[1]), True
        if held and (record is None or len(held) >= rows_per_chunk or size >= MAX_CHUNK_BYTES):
            yield JsonRecords(str(file), tuple(held))
            held, size = [], 0
        if record is None:
            break
    if failed:
        yield FailedChunk(failed, str(file))
    elif not found:
        yield no_record(file)


def _starts_with_an_object_on_a_line(file: Path) -> bool:
    """Whether the first line that is not blank is one whole JSON object, with more lines behind it."""
    head = b""
    try:
        for block in read_blocks(file):
            head = (head + block).removeprefix(codecs.BOM_UTF8).lstrip()
            # Far enough to see whether the first line is whole; a file without a line end is not read to its end for
            # that.
            if head[:1] not in (b"", b"{") or b"\n" in head or len(head) > _FIRST_LINE:
                break
    except DecompressionError:
        return False
    line, end, _ = head.partition(b"\n")
    # An object alone in the file, on one line or on many, is read as a stream of one.
    if not end or line[:1] != b"{":
        return False
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


class _Window:
    """A stretch of the file's text: `text` from `position` on is not used yet, and starts on line `line`."""

    def __init__(self, file: Path) -> None:
        self.text, self.position, self.line = "", 0, 1
        self.ended = False
        self._blocks = read_blocks(file)
        # utf-8-sig drops a byte order mark; incremental, since a block may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(_ESCAPE)

    def grow(self) -> bool:
        """Drop what is used and double what is left, within limits; False at the end of the file."""
        if self.ended:
            return False
        parts = [self.text[self.position :]]
        # Before reading on: what is left of the window is one record that has not ended yet.
        if len(parts[0]) > MAX_RECORD_BYTES:
            raise _Broken(f"the record has more than {MAX_RECORD_BYTES >> 20} MiB", self.line)
        if len(parts[0]) > _MANY and sum(map(parts[0].count, ",[{")) > MAX_VALUES:
            raise _Broken(f"the record has more than {MAX_VALUES} values", self.line)
        # Doubling keeps the work linear: a record is scanned again from its start each time the window grows.
        wanted = len(parts[0]) + min(len(parts[0]), _MANY) + 1
        while sum(map(len, parts)) < wanted and not self.ended:
            block = next(self._blocks, None)
            parts.append(self._decoder.decode(block or b"", final=block is None))
            self.ended = block is None
        self.text, self.position = "".join(parts), 0
        return True

    def peek(self) -> str:
        """The next character that is not blank, which is then at `position`; "" at the end of the file."""
        while True:
            start, text = self.position, self.text
            found = _NOT_BLANK.search(text, start)
            position = found.start() if found else len(text)
            self.line += text.count("\n", start, position)
            self.position = position
            if position < len(text):
                return text[position]
            if not self.grow():
                return ""

    def take(self, end: int) -> str:
        """The text up to `end`."""
        taken = self.text[self.position : end]
        self.line += taken.count("\n")
        self.position = end
        return taken


def _records(window: _Window) -> Iterator[tuple[int, bytes]]:
    """(line, bytes) of each record.

    Raises:
        _Broken: Where the next border cannot be found.
        DecompressionError: Where the file cannot be decompressed.
    """
    # Without brackets the file holds objects one after the other, over any number of lines.
    in_array = window.peek() == "["
    if in_array:
        window.take(window.position + 1)
        if window.peek() == "]":
            window.take(window.position + 1)
            return _nothing_after(window)
    while (not in_array and window.peek()) or in_array:
        if in_array and not window.peek():
            raise _Broken("the file ends inside the array (no closing ']')", window.line)
        line = window.line
        yield line, _one(window).encode("utf-8", _ESCAPE)
        if in_array and _array_ends(window):
            return _nothing_after(window)
    return None


def _one(window: _Window) -> str:
    """The text of the value that starts at the window's position."""
    while True:
        try:
            _, end = _DECODER.raw_decode(window.text, window.position)
        except json.JSONDecodeError as error:
            # An open string, or a fault at the very end of the window, may only mean that more of the record follows.
            cut = error.msg.startswith("Unterminated string") or error.pos >= len(window.text) - 16
            if cut and window.grow():
                continue
            line = window.line + window.text.count("\n", window.position, error.pos)
            raise _Broken(_words(error, window), line) from error
        except RecursionError as error:
            raise _Broken("nested too deep to find the end of the record", window.line) from error
        # A number continues until something else follows; only then is its end known.
        if end == len(window.text) and window.grow():
            continue
        return window.take(end)


def _words(error: json.JSONDecodeError, window: _Window) -> str:
    """The decoder's words without its line and column, which count from the start of the window."""
    found = window.text[error.pos : error.pos + 1]
    if not found:
        return f"{error.msg}, found the end of the file"
    return f"{error.msg}, found {found!r}" if found.isprintable() or found == "\x00" else error.msg


def _array_ends(window: _Window) -> bool:
    """Step over the comma between two records, or over the end of the array."""
    found = window.peek()
    if found == "":
        raise _Broken("the file ends inside the array (no closing ']')", window.line)
    if found not in ",]":
        raise _Broken(f"expected ',' or ']' after a record, found {found!r}", window.line)
    line = window.line
    window.take(window.position + 1)
    if found == "," and window.peek() == "]":
        raise _Broken("a comma with no record after it", line)
    return found == "]"


def _nothing_after(window: _Window) -> None:
    if window.peek():
        raise _Broken("extra data after the closing ']'", window.line)


def _malformed(file: Path, broken: _Broken) -> DataError:
    return DataError(
        f"malformed JSON: {broken.cause}; no record behind this line can be read",
        place=f"{file}:{broken.line}",
        fix="Fix the file; a .json file holds one array of objects (or one object a line).",
        kind=MALFORMED,
    )
