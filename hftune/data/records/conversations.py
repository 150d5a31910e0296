"""The conversation of a record, for SFT: the first format that fits, in the order of `formats.CONVERSATIONS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hftune.data.readers.base import Row
from hftune.data.records import fields
from hftune.data.records.formats import (
    CONVERSATIONS,
    first_fit,
    is_labelled,
    pair_format,
    refuse_media,
    unknown_format,
    wrong_stage,
)
from hftune.data.records.messages import THOUGHTS_KEYS, Message
from hftune.data.records.unread import has_text, note_unread
from hftune.errors import DataError
from hftune.template_arguments import TemplateArguments

NO_ASSISTANT = "no assistant turn"
NOTHING_TRAINED = "no trained turn"


@dataclass
class Conversation:
    """Messages to train on (at least one assistant turn that is), and the tools offered."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    origin: str
    template_arguments: TemplateArguments = field(default_factory=dict)


def to_conversation(row: Row) -> Conversation:
    """The conversation of a row for SFT, in any format of `formats.CONVERSATIONS`.

    Raises:
        DataError: In none of these formats, data for another script, no assistant turn, or none that is trained.
    """
    value, origin = row.value, row.origin
    # First of all: a worse answer, or one labelled bad, must not be learned as an example.
    if pair_format(value) or is_labelled(value):
        raise wrong_stage(value, origin, "run_sft.py")
    refuse_media(value, origin)
    found = first_fit(value, CONVERSATIONS)
    if found is None:
        raise unknown_format(value, origin, "run_sft.py")
    messages = READERS[found.keys](row)
    if not THOUGHTS_KEYS.isdisjoint(value):
        # They may be the model's thoughts, or somebody's about the answer.
        for key in (key for key in THOUGHTS_KEYS if has_text(value.get(key))):
            note_unread(f'the column "{key}"', origin)
    # Before anything is rendered: a record without a target would cost a tokenisation to find out.
    weights = [message.get("weight", 1.0) for message in messages if message["role"] == "assistant"]
    if not weights:
        raise DataError(
            "the conversation has no assistant turn, so there is nothing to learn",
            place=origin,
            fix="Add the answer. Prompts without answers are data for run_rl.py.",
            kind=NO_ASSISTANT,
        )
    if not any(weights):
        raise DataError(
            "every assistant turn has the weight 0, so there is nothing to learn",
            place=origin,
            fix="Remove the record, or the weight of the turn that is to be trained.",
            kind=NOTHING_TRAINED,
        )
    return Conversation(messages, fields.tools(row), origin, fields.template_arguments(row))


def _asked_and_answered(row: Row, question: str, answer: str) -> list[Message]:
    return fields.question(row, question) + fields.answer(row, answer)


def _turns(row: Row) -> list[Message]:
    messages = fields.turns(row)
    assert messages is not None, "the format was recognised by these columns"
    return messages


READERS: dict[tuple[str, ...], Callable[[Row], list[Message]]] = {
    known.keys: partial(_asked_and_answered, question=known.keys[0], answer=known.keys[-1]) for known in CONVERSATIONS
} | {("conversations",): _turns, ("messages",): _turns, ("conversation",): _turns, ("src", "tgt"): fields.erniekit}
