"""A conversation as one more record of a JSONL file, which trains as it stands."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from hftune.data.readers.base import Row
from hftune.data.records import to_conversation
from hftune.errors import ArgumentError, DataError
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LIMIT, parse_json
from hftune.opening.own_file import open_own
from hftune.publishing.disk import disk_errors, flush
from hftune.secrets import redacted

_PLACE = "/save"


def append_record(file: Path, record: dict[str, Any]) -> int:
    """Append a conversation to a file of such, or to a new one; returns how many records it has now.

    The file is whole before and after: a line is written in one call, or taken back.

    Raises:
        ArgumentError: The file is no JSONL of conversations, or the disk does not take the record.
        DataError: Nothing in the conversation could be trained.
    """
    to_conversation(Row(record, _PLACE, 1))
    if not file.absolute().parent.is_dir():
        raise ArgumentError(
            f"there is no folder {file.absolute().parent}", place=_PLACE, fix="make it, or name another"
        )
    line = (json.dumps(redacted(record), ensure_ascii=False) + "\n").encode("utf-8", "replace")
    with disk_errors(file, _PLACE):
        with open_own(file) as stream:
            handle = stream.fileno()
            # Of two chats that save into one file.
            fcntl.flock(handle, fcntl.LOCK_EX)
            content = read_bytes(file, limit=LIMIT, error=ArgumentError)
            count = _records(content, file)
            _append(handle, (b"\n" if content and not content.endswith(b"\n") else b"") + line, len(content))
        flush(file.absolute().parent)
    return count + 1


def _append(handle: int, data: bytes, before: int) -> None:
    try:
        if os.write(handle, data) < len(data):
            raise OSError(28, os.strerror(28), "")
        os.fsync(handle)
    except BaseException:  # Ctrl-C as well: half a line would break the file
        os.ftruncate(handle, before)
        raise


def _records(content: bytes, file: Path) -> int:
    """How many conversations there are.

    Raises:
        ArgumentError: A line is none.
    """
    found = 0
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            to_conversation(Row(parse_json(line, str(file), error=DataError), str(file), number))
        except DataError as error:
            cause = f"{file} is no JSONL of conversations: nothing was written"
            raise ArgumentError(cause, place=f"{file}:{number}", fix="choose another name") from error
        found += 1
    return found
