"""A .json file: one array of objects, or objects that follow each other; it is read as a whole.

Only the borders of the records are found here; each record is parsed in its chunk. Where a border cannot be found, the
rest of the file is lost, and one error says so.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from hftune.data.readers.base import Chunk, FailedChunk, RowOrError, grouped, no_record
from hftune.data.readers.compressed import DecompressionError, read_blocks
from hftune.data.readers.lines import json_line_chunks
from hftune.data.readers.strict_json import MALFORMED, parse_object
from hftune.errors import DataError

# Numbers stay text: only the end of a record matters here, and an endless number must not cost anything.
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
_BLANK = re.compile(r"[ \t\r\n]*")
_FIRST_LINE = 16 << 20
# Blocks, their sum and its text are in memory at once.
_COPIES = 3
# Bytes that are not UTF-8 travel through text as surrogates, so that the record that holds them can be refused alone.
_ESCAPE = "surrogateescape"


@dataclass(frozen=True, slots=True)
class JsonRecords(Chunk):
    """Records with the lines where they start; an error in place of those that cannot be reached."""

    file: str
    records: tuple[tuple[int, bytes | DataError], ...]

    def rows(self) -> Iterator[RowOrError]:
        """Parse each record."""
        for line, raw in self.records:
            yield raw if isinstance(raw, DataError) else parse_object(raw, self.file, line)


class _Broken(Exception):
    """No record ends behind this position."""

    def __init__(self, cause: str, position: int) -> None:
        self.cause, self.position = cause, position
        super().__init__(cause)


def json_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records of a .json file in chunks. If its first line is a whole object, it holds JSON lines.

    Raises:
        OSError: From the system.
    """
    if _starts_with_an_object_on_a_line(file):
        yield from json_line_chunks(file, rows_per_chunk)
        return
    if _COPIES * file.stat().st_size > psutil.virtual_memory().available:
        yield FailedChunk(_beyond_memory(file), str(file))
        return
    found = False
    for held in grouped(_records(file), rows_per_chunk, _size):
        yield JsonRecords(str(file), held)
        found = True
    if not found:
        yield no_record(file)


def _size(record: tuple[int, bytes | DataError]) -> int:
    return len(record[1]) if isinstance(record[1], bytes) else 0


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
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _records(file: Path) -> Iterator[tuple[int, bytes | DataError]]:
    """(line, bytes) of each record, and last an error where the rest of the file cannot be read."""
    blocks: list[bytes] = []
    damage = None
    try:
        blocks.extend(read_blocks(file))
    except DecompressionError as error:
        damage = error  # what came before it is there
    text = b"".join(blocks).decode("utf-8-sig", _ESCAPE)
    line, reached, cause = 1, 0, ""
    try:
        for start, end in _borders(text):
            line, reached = line + text.count("\n", reached, start), start
            yield line, text[start:end].encode("utf-8", _ESCAPE)
    except _Broken as broken:
        line, cause = line + text.count("\n", reached, broken.position), broken.cause
    if damage or cause:
        yield line, damage.from_line(line) if damage else _malformed(file, line, cause)


def _borders(text: str) -> Iterator[tuple[int, int]]:
    """Where each record begins and ends.

    Raises:
        _Broken: Where the next border cannot be found.
    """
    at = _behind_blank(text, 0)
    # Without brackets the file holds objects one after the other, over any number of lines.
    in_array = text.startswith("[", at)
    if in_array:
        at = _behind_blank(text, at + 1)
        if text.startswith("]", at):
            return _nothing_after(text, at)
    while at < len(text):
        end = _end(text, at)
        yield at, end
        at = _behind_blank(text, end)
        if in_array and at < len(text):
            if text[at] == "]":
                return _nothing_after(text, at)
            at = _behind_comma(text, at)
    if in_array:
        raise _Broken("the file ends inside the array (no closing ']')", len(text))
    return None


def _behind_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _end(text: str, at: int) -> int:
    """Where the value that starts here ends."""
    try:
        return _DECODER.raw_decode(text, at)[1]
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 1]
        what = f", found {found!r}" if found.isprintable() or found == "\x00" else ""
        raise _Broken(error.msg + (what if found else ", found the end of the file"), error.pos) from error
    except RecursionError as error:
        raise _Broken("nested too deep to find the end of the record", at) from error


def _behind_comma(text: str, at: int) -> int:
    """The beginning of the next record in an array."""
    if text[at] != ",":
        raise _Broken(f"expected ',' or ']' after a record, found {text[at]!r}", at)
    after = _behind_blank(text, at + 1)
    if text.startswith("]", after):
        raise _Broken("a comma with no record after it", at)
    return after


def _nothing_after(text: str, at: int) -> None:
    behind = _behind_blank(text, at + 1)
    if behind < len(text):
        raise _Broken("extra data after the closing ']'", behind)


def _beyond_memory(file: Path) -> DataError:
    return DataError(
        "the array does not fit into the free memory, and a .json file is read as a whole",
        place=str(file),
        fix="Write an object a line: jq -c '.[]' data.json > data.jsonl",
        kind="unreadable file",
    )


def _malformed(file: Path, line: int, cause: str) -> DataError:
    return DataError(
        f"malformed JSON: {cause}; no record behind this line can be read",
        place=f"{file}:{line}",
        fix="Fix the file; a .json file holds one array of objects (or one object a line).",
        kind=MALFORMED,
    )
