"""What a turn says: a string, or a list of parts, as OpenAI, Anthropic and LLaMA-Factory (v1) write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.data.records.tool_calls import parse_calls
from hftune.errors import DataError, shown

NOT_TEXT = "content that is not text"

# By the type of a part: the keys under which its text may stand.
_TEXTS = {None: ("text",), "text": ("text", "value"), "input_text": ("text",), "output_text": ("text",)}
_REASONING = {"reasoning": ("value", "text"), "thinking": ("thinking",)}
_CALLS = ("tool_call", "tool_use")


@dataclass(slots=True)
class TurnContent:
    """The text, the reasoning before it ("" for none) and the function calls of a turn."""

    text: str
    reasoning: str
    calls: list[dict[str, Any]]


def text_of(value: Any, origin: str, where: str, *, missing_ok: bool = False) -> str:
    """The text of a message's content: a string, or a list of {"type": "text", "text": ...} parts.

    Raises:
        DataError: Anything else, such as an image, a number or (unless `missing_ok`) null.
    """
    # By far the most frequent; `type`, since it is asked for each turn of each record.
    if type(value) is str:
        return value
    if value is None and missing_ok:
        return ""
    texts = [_part(part, _TEXTS) for part in value] if isinstance(value, list) else [None]
    if any(text is None for text in texts):
        raise _not_text(value, origin, where)
    return "".join(text for text in texts if text is not None)


def split(parts: list[Any], origin: str, where: str) -> TurnContent:
    """What the parts of an assistant turn say.

    Raises:
        DataError: A part that is neither text, reasoning nor a function call.
    """
    said = TurnContent("", "", [])
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _CALLS:
            said.calls += parse_calls(_call(part), origin, where)
        elif (thought := _part(part, _REASONING)) is not None:
            said.reasoning += thought
        elif (text := _part(part, _TEXTS)) is not None:
            said.text += text
        else:
            raise _not_text(parts, origin, where)
    return said


def _part(part: Any, known: dict[Any, tuple[str, ...]]) -> str | None:
    """The text of a part whose type is among those known; None for any other."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), (str, type(None))):
        return None
    keys = known.get(part.get("type"), ())
    return next((part[key] for key in keys if isinstance(part.get(key), str)), None)


def _call(part: dict[str, Any]) -> Any:
    """LLaMA-Factory writes a call as JSON in `value`, Anthropic as `name` and `input`."""
    if part["type"] == "tool_call":
        return part.get("value")
    # The form that OpenAI has, which `parse_calls` reads.
    return {"id": part.get("id"), "name": part.get("name"), "arguments": part.get("input")}


def _not_text(value: Any, origin: str, where: str) -> DataError:
    return DataError(
        f"{where} must be text, found {type(value).__name__}: {shown(value)}",
        place=origin,
        fix="Write a string; images, audio and other values are not read.",
        kind=NOT_TEXT,
    )
