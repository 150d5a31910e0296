"""A .json file: one array of objects, or objects that follow each other; it is read as a whole.

Where the end of a record cannot be found, the rest of the file is lost, and one error says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from hftune.data.readers.base import Chunk, FailedChunk
from hftune.data.readers.strict_json import MALFORMED, parse_object
from hftune.data.readers.text import (
    DecompressionError,
    Record,
    damaged,
    json_line_chunks,
    line_records,
    read_blocks,
    record_chunks,
)
from hftune.errors import DataError

# Numbers stay text: only the end of a record matters here, and an endless number must not cost anything.
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
# A comma too many loses nothing.
_BETWEEN = re.compile(r"[ \t\r\n,]*")
# Blocks, their sum and its text are in memory at once.
_COPIES = 3
# Bytes that are not UTF-8 travel through text as surrogates, so that the record that holds them can be refused alone.
_ESCAPE = "surrogateescape"


def json_chunks(file: Path, rows_per_chunk: int) -> Iterator[Chunk]:
    """The records of a .json file in chunks. If its first line is a whole object, it holds JSON lines.

    Raises:
        OSError: From the system.
    """
    if _begins_with_an_object_on_a_line(file):
        yield from json_line_chunks(file, rows_per_chunk)
    elif _COPIES * file.stat().st_size > psutil.virtual_memory().available:
        yield FailedChunk(_beyond_memory(file), str(file))
    else:
        yield from record_chunks(file, _records(file), parse_object, rows_per_chunk)


def _begins_with_an_object_on_a_line(file: Path) -> bool:
    try:
        # An array may be one line of gigabytes: what begins with a bracket is not looked at any further.
        if not next(read_blocks(file), b"").lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            return False
        _, line = next(line_records(file))
        return isinstance(line, bytes) and isinstance(_DECODER.decode(line.decode()), dict)
    except (ValueError, RecursionError, DecompressionError, DataError):
        return False


def _records(file: Path) -> Iterator[Record]:
    """The bytes of each record.

    Raises:
        DataError: Behind the last one whose end can be found.
    """
    text, damage = _text(file)
    at, end = _behind(text, 0), len(text.rstrip())
    # Without brackets the file holds objects one after the other, over any number of lines.
    in_array = text.startswith("[", at)
    is_closed = in_array and text.endswith("]", at + 1, end)
    at, end = _behind(text, at + in_array), end - is_closed
    line, reached, cause = 1, 0, "the file ends inside the array (no closing ']')" if in_array > is_closed else ""
    while at < end:
        line, reached = line + text.count("\n", reached, at), at
        try:
            after = _DECODER.raw_decode(text, at)[1]
        except RecursionError:
            cause = "nested too deep to find the end of the record"
            break
        except json.JSONDecodeError as error:
            found = text[error.pos : error.pos + 1]
            cause, at = f"{error.msg}, found {repr(found) if found else 'the end of the file'}", error.pos
            break
        yield line, text[at:after].encode("utf-8", _ESCAPE)
        at = _behind(text, after)
    line += text.count("\n", reached, at)
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


def _beyond_memory(file: Path) -> DataError:
    return DataError(
        "the array does not fit into the free memory, and a .json file is read as a whole",
        place=str(file),
        fix="Write an object a line: jq -c '.[]' data.json > data.jsonl",
        kind="unreadable file",
    )
