"""What is asked: the questions of records, where each comes from, and what the right answer is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hftune.data.files import Row, chunks, find_files
from hftune.data.formats import placed
from hftune.data.messages import Message
from hftune.data.records import read_tools, to_conversation, to_prompt
from hftune.errors import DataError
from hftune.template_arguments import TemplateArguments
from hftune.trainers.rewards.builtin import REFERENCES


@dataclass(frozen=True)
class Question:
    """A conversation that ends with a user's or a tool's turn.

    Args:
        tools: What is offered.
        arguments: What the template is given besides the model's own.
        origin: Where it comes from, for messages.
        right: The answer in the record; None where it has none.
        columns: All others of the record.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    arguments: TemplateArguments = field(default_factory=dict)
    origin: str = ""
    right: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)

    def transcript(self) -> str:
        """The conversation as a judge reads it: role and text of each turn."""
        return "\n".join(f"{turn['role']}: {turn.get('content') or ''}" for turn in self.messages)


def asked(text: str, origin: str = "") -> Question:
    """A question of a user."""
    turn: dict[str, Any] = {"role": "user", "content": text}
    return Question([turn], origin=origin)


def rows_of(path: str, flag: str, most: int | None = None) -> list[tuple[Row, str]]:
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


@placed
def question_of(row: Row) -> Question:
    """The question of a record, of a conversation its last one.

    Raises:
        DataError: There is none.
    """
    prompt = to_prompt(row)
    column = next((name for name in REFERENCES if prompt.extra.get(name) is not None), None)
    right = prompt.extra[column] if column else _last_answer(row)
    # Of several right answers `accuracy` reads the list again.
    right = json.dumps(right, ensure_ascii=False) if isinstance(right, list) else right
    right = None if right is None else str(right)
    return Question(prompt.messages, read_tools(row), prompt.template_arguments, row.origin, right, prompt.extra)


def _last_answer(row: Row) -> str | None:
    try:
        last = to_conversation(row).messages[-1]
    except DataError:
        return None  # a prompt alone
    return str(last["content"]) if last["role"] == "assistant" else None
