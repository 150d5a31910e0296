"""The text of a record, for pre-training."""

from __future__ import annotations

from hftune.data.readers.base import Row
from hftune.data.records.content import text_of
from hftune.data.records.formats import pair_format, refuse_media, unknown_format
from hftune.data.records.messages import is_message, parse_messages
from hftune.errors import DataError

BLANK = "blank text"


def to_text(row: Row) -> str:
    """The text of a row for pre-training: its `text`, its `content`, or a conversation of one assistant turn.

    Raises:
        DataError: None of them is there, or it is blank.
    """
    value, origin = row.value, row.origin
    # A single turn of a conversation has a `content` that looks like a text for pre-training.
    if pair_format(value) or is_message(value):
        raise unknown_format(value, origin, "run_pt.py")
    refuse_media(value, origin)
    # Before `content`: null columns of tables count as absent.
    if value.get("messages") is not None and value.get("text") is None:
        return _lone_turn(row)
    key = next((key for key in ("text", "content") if value.get(key) is not None), None)
    if key is None:
        raise unknown_format(value, origin, "run_pt.py")
    text = text_of(value[key], origin, f'"{key}"')
    if not text or text.isspace():
        raise DataError(f'"{key}" is blank', place=origin, fix="Remove the record.", kind=BLANK)
    return text


def _lone_turn(row: Row) -> str:
    """ms-swift's way to write text: messages that are one assistant turn."""
    messages = parse_messages(row.value["messages"], row.origin, "messages")
    if len(messages) != 1 or messages[0]["role"] != "assistant" or messages[0].get("tool_calls"):
        raise unknown_format(row.value, row.origin, "run_pt.py")
    content: str = messages[0]["content"]
    return content
