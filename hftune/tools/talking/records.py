"""Records that are asked: where each comes from, what the question is, and what the right answer is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hftune.data.messages import Message
from hftune.data.readers.base import Row
from hftune.data.readers.files import chunks, find_files
from hftune.data.records import Prompt, read_tools, to_conversation, to_prompt
from hftune.errors import DataError
from hftune.trainers.rewards.builtin import REFERENCES


@dataclass(frozen=True)
class Asked:
    """A question of a record.

    Args:
        right: The answer in the record; None where it has none.
        tools: What is offered.
    """

    prompt: Prompt
    right: str | None
    tools: list[dict[str, Any]] | None


def rows_of(path: str, flag: str, most: int | None) -> list[tuple[Row, str]]:
    """The records of a file or folder, each with its source: the name of its file.

    Args:
        most: So many at most; None or -1: all.

    Raises:
        DataError: One cannot be read.
    """
    return list(islice(_rows(path, flag), None if most == -1 else most))


def _rows(path: str, flag: str) -> Iterator[tuple[Row, str]]:
    top = Path(path).expanduser()
    for chunk in chunks(find_files(path, flag)):
        for row in chunk.rows():
            if isinstance(row, DataError):
                raise row
            file = Path(row.file)
            yield row, str(file.relative_to(top)) if top.is_dir() and file.is_relative_to(top) else file.name


def asked(row: Row) -> Asked:
    """The question of a record, of a conversation its last one.

    Raises:
        DataError: There is none.
    """
    prompt = to_prompt(row)
    column = next((name for name in REFERENCES if prompt.extra.get(name) is not None), None)
    right = prompt.extra[column] if column else _last_answer(row)
    # Of several right answers `accuracy` reads the list again.
    right = json.dumps(right, ensure_ascii=False) if isinstance(right, list) else right
    return Asked(prompt, None if right is None else str(right), read_tools(row))


def _last_answer(row: Row) -> str | None:
    try:
        last = to_conversation(row).messages[-1]
    except DataError:
        return None  # a prompt alone
    return str(last["content"]) if last["role"] == "assistant" else None


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as a judge reads it: role and text of each turn."""
    return "\n".join(f"{turn['role']}: {turn.get('content') or ''}" for turn in messages)
