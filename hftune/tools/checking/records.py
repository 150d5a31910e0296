"""A record of any stage as the check looks at it: who says what, and what is compared with other records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import xxhash

from hftune.data.compared_answers import to_preference
from hftune.data.formats import CONVERSATIONS, TEXTS, first_fit, is_labelled, pair_format
from hftune.data.messages import Message
from hftune.data.readers.base import Row
from hftune.data.records import NO_ASSISTANT, to_conversation, to_labelled, to_prompt, to_text
from hftune.errors import DataError

CONVERSATION, PAIR, LABELLED, PROMPT, TEXT = "conversation", "pair", "labelled", "prompt", "text"


@dataclass(slots=True)
class Record:
    """What one record says.

    Attributes:
        kind: What it is for: one of the names above.
        spoken: (role, text) of each turn, prompt before answers; of a text for pre-training one turn of nobody.
        answers: What the model would learn to say last: one text, of a pair both.
        tools: Whether functions are offered or called.
        thoughts: Whether a turn has thoughts.
        label: False for an answer that is labelled bad.
    """

    kind: str
    spoken: list[tuple[str, str]]
    answers: list[str] = field(default_factory=list)
    tools: bool = False
    thoughts: bool = False
    label: bool = True

    @property
    def compared(self) -> str:
        """What is compared with other records: all but system texts, which thousands of records share."""
        return "\n".join(text for role, text in self.spoken if role != "system")

    @property
    def asked(self) -> str:
        """What the user says."""
        return "\n".join(text for role, text in self.spoken if role == "user")

    @property
    def whole(self) -> str:
        """All of it."""
        return "\n".join(text for _, text in self.spoken)

    @property
    def exact(self) -> int:
        """A hash of everything that is trained, 64 bits."""
        return _hash([self.kind, self.label, *(part for turn in self.spoken for part in turn)])


def to_record(row: Row) -> Record:
    """The record of a row, in whichever of the known formats it is.

    Raises:
        DataError: In none of them, or one that no stage could train on.
    """
    value = row.value
    if pair_format(value) or (isinstance(value.get("output"), list) and value.get("instruction") is not None):
        return _pair(row)
    if is_labelled(value):
        return _labelled(row)
    if first_fit(value, CONVERSATIONS):
        return _conversation(row)
    return Record(TEXT, [("", to_text(row))]) if first_fit(value, TEXTS) else _prompt(row)


def learnt(row: Row) -> Row | None:
    """The record as a stage learns it: of a pair the better answer; None for a prompt, and for an answer labelled bad.

    Raises:
        DataError: As `to_record`.
    """
    kind = to_record(row).kind
    if kind == PAIR:
        pair = to_preference(row)
        return Row({"messages": [*pair.prompt, *pair.chosen], "tools": pair.tools}, row.file, row.line)
    if kind == LABELLED:
        found = to_labelled(row)
        messages = [*found.prompt, *found.completion]
        return Row({"messages": messages, "tools": found.tools}, row.file, row.line) if found.label else None
    return None if kind == PROMPT else row


def _conversation(row: Row) -> Record:
    try:
        found = to_conversation(row)
    except DataError as error:
        if error.kind != NO_ASSISTANT:
            raise
        return _prompt(row)
    return _made(CONVERSATION, found.messages, [found.messages], found.tools)


def _prompt(row: Row) -> Record:
    return _made(PROMPT, to_prompt(row).messages, [], None)


def _pair(row: Row) -> Record:
    found = to_preference(row)
    spoken = [*found.prompt, *found.chosen, *found.rejected]
    return _made(PAIR, spoken, [found.chosen, found.rejected], found.tools)


def _labelled(row: Row) -> Record:
    found = to_labelled(row)
    made = _made(LABELLED, [*found.prompt, *found.completion], [found.completion], found.tools)
    made.label = found.label
    return made


def _made(kind: str, messages: list[Message], answers: list[list[Message]], tools: Any) -> Record:
    spoken = [(str(message["role"]), _text(message)) for message in messages]
    last = [answer[-1] for answer in answers if answer]
    said = [str(message.get("content") or "") for message in last if message["role"] == "assistant"]
    calls = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
    thoughts = any(
        "reasoning_content" in message or "<think>" in text for message, (_, text) in zip(messages, spoken, strict=True)
    )
    return Record(kind, spoken, said, bool(tools) or calls, thoughts)


def _text(message: Message) -> str:
    """All that a turn says: thoughts, text, calls."""
    if len(message) == 2:
        return str(message["content"])
    parts = [message.get("reasoning_content") or "", message.get("content") or ""]
    for call in message.get("tool_calls") or []:
        parts.append(json.dumps(call.get("function"), ensure_ascii=False, default=str))
    return "\n".join(str(part) for part in parts if part)


def _hash(parts: Iterable[object]) -> int:
    """64 bits of some texts; where one ends and the next begins counts."""
    digest = xxhash.xxh3_64()
    for part in parts:
        content = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.intdigest()
