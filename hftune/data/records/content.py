"""What a turn says: a string, or a list of parts, as OpenAI, Anthropic, Mistral and LLaMA-Factory (v1) write it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hftune.data.records.tool_calls import parse_calls
from hftune.data.records.unread import note_unread
from hftune.errors import DataError, shown

NOT_TEXT = "content that is not text"

# By the type of a part: the keys under which its text may stand.
_TEXTS = {None: ("text",), "text": ("text", "value"), "input_text": ("text",), "output_text": ("text",)}
_REASONING = {
    "reasoning": ("value", "text", "reasoning"),
    "thinking": ("thinking", "text"),
    # OpenRouter's `reasoning_details`.
    "reasoning.text": ("text",),
    "reasoning.summary": ("summary",),
}
_CALLS = ("tool_call", "tool_use")
_RESULT = "tool_result"
_MEDIA = {
    "image": "an image",
    "audio": "sound",
    "video": "film",
    "document": "a document",
    "file": "a file",
}
# Thoughts that their provider keeps to itself: there is nothing to train.
_HIDDEN = ("redacted_thinking", "reasoning.encrypted")


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
    text = _joined(value, _TEXTS) if isinstance(value, list) else None
    if text is None:
        raise _not_text(value, origin, where)
    return text


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
        elif kind in _HIDDEN:
            note_unread(f"parts of the type {kind}", origin)
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
    text = next((part[key] for key in keys if isinstance(part.get(key), (str, list))), None)
    # Mistral's thoughts are parts themselves.
    return _joined(text, _TEXTS) if isinstance(text, list) else text


def _joined(parts: list[Any], known: dict[Any, tuple[str, ...]]) -> str | None:
    """The texts of all parts; None where one has none."""
    texts = [_part(part, known) for part in parts]
    return None if None in texts else "".join(text for text in texts if text is not None)


def thoughts_of(value: Any) -> str:
    """The text of a field of thoughts, a string or parts without those that are hidden; "" for none."""
    if isinstance(value, list):
        kinds = [part.get("type") if isinstance(part, dict) else "" for part in value]
        value = _joined([part for part, kind in zip(value, kinds, strict=True) if kind not in _HIDDEN], _REASONING)
    return value if isinstance(value, str) and value.strip() else ""


def results_in(content: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Anthropic's results of tools among the parts of a user's turn, as turns of their own, and the other parts."""
    parts = content if type(content) is list else []
    found = [part for part in parts if isinstance(part, dict) and part.get("type") == _RESULT]
    keys = {"content": "content", "tool_call_id": "tool_use_id"}
    turns = [{"role": "tool"} | {ours: part.get(theirs) for ours, theirs in keys.items()} for part in found]
    return turns, [part for part in parts if part not in found] if found else parts


def result_text(value: Any, origin: str, where: str) -> str:
    """What a tool has returned: text, parts, or any other value of JSON, which becomes its text.

    Raises:
        DataError: Parts that are not text, such as an image.
    """
    if isinstance(value, str) or value is None:
        return value or ""
    parts = value if isinstance(value, list) else [value]
    text = _joined(parts, _TEXTS) if parts else None
    kinds = [str(part.get("type")) for part in parts if isinstance(part, dict)]
    if text is None and any(medium in kind for kind in kinds for medium in _MEDIA):
        raise _not_text(value, origin, where)
    return json.dumps(value, ensure_ascii=False, default=str) if text is None else text


def _call(part: dict[str, Any]) -> Any:
    """LLaMA-Factory writes a call as JSON in `value`, Anthropic as `name` and `input`."""
    if part["type"] == "tool_call":
        return part.get("value")
    # The form that OpenAI has, which `parse_calls` reads.
    return {"id": part.get("id"), "name": part.get("name"), "arguments": part.get("input")}


def _not_text(value: Any, origin: str, where: str) -> DataError:
    found = f"{type(value).__name__}: {shown(value)}"
    for part in value if isinstance(value, list) else [value]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind is not None and _part(part, _TEXTS | _REASONING) is None:
            medium = next((medium for medium in _MEDIA if medium in str(kind)), None)
            found = f"a part of the type {shown(kind)}" + (f" ({_MEDIA[medium]})" if medium else "")
            break
    return DataError(
        f"{where} must be text, found {found}",
        place=origin,
        fix="Write a string, or parts of text; images, audio, video and files are not read yet: remove such records.",
        kind=NOT_TEXT,
    )
