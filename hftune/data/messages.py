"""One canonical form of a conversation: a list of {"role", "content"} messages as chat templates read them.

Roles are system, user, assistant and tool. An assistant message may carry `tool_calls`
([{"type": "function", "function": {"name": str, "arguments": dict}}]), `reasoning_content`, and `weight` (0: this turn
is not trained).
"""

from __future__ import annotations

import json
from typing import Any

from hftune.errors import DataError

Message = dict[str, Any]

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
"""The names of roles met in the wild, and ours."""

_CALLS = ("function_call", "tool_call")
_KEPT = ("name", "tool_call_id", "reasoning_content", "weight")


def is_message(value: Any) -> bool:
    """Whether a value looks like one message, with from/value or role/content."""
    return isinstance(value, dict) and ("from" in value or "role" in value)


def parse_messages(value: Any, origin: str, key: str) -> list[Message]:
    """A list of from/value or role/content turns to canonical messages.

    Raises:
        DataError: Not a list, an empty list, a turn of another form, an unknown role, or a broken function call.
    """
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else type(value).__name__
        raise DataError(
            f'"{key}" must be a list of turns, found {found}',
            place=origin,
            fix='Write [{"from": "human", "value": ...}, ...] or [{"role": "user", "content": ...}, ...].',
        )
    messages = [_parse_turn(turn, origin, f"{key}[{index}]") for index, turn in enumerate(value)]
    for index, message in enumerate(messages):
        # A result must answer a call: templates print a stray one as if the user had said it, or refuse.
        if message["role"] == "tool" and (index == 0 or messages[index - 1]["role"] not in ("assistant", "tool")):
            raise DataError(
                f"{key}[{index}] is a tool result that follows no assistant turn",
                place=origin,
                fix="Put the assistant's function call before it.",
            )
    return messages


def _parse_turn(turn: Any, origin: str, where: str) -> Message:
    """One turn to one message."""
    if not is_message(turn):
        found = sorted(turn) if isinstance(turn, dict) else type(turn).__name__
        raise DataError(f"{where} must have from/value or role/content, found {found}", place=origin)
    spoken = turn["from"] if "from" in turn else turn["role"]
    role = ROLES.get(spoken.lower() if isinstance(spoken, str) else "")
    if role is None:
        raise DataError(
            f"{where} has the unknown role {spoken!r}", place=origin, fix=f"Known roles: {', '.join(sorted(ROLES))}."
        )
    raw = turn.get("value", turn.get("content")) if "from" in turn else turn.get("content", turn.get("value"))
    if spoken.lower() in _CALLS:
        message: Message = {"role": role, "content": "", "tool_calls": _calls(raw, origin, where)}
    else:
        message = {"role": role, "content": text_of(raw, origin, where, missing_ok=bool(turn.get("tool_calls")))}
        if turn.get("tool_calls"):
            message["tool_calls"] = _calls(turn["tool_calls"], origin, where)
    message.update({key: turn[key] for key in _KEPT if turn.get(key) is not None})
    return _checked(message, origin, where)


def _checked(message: Message, origin: str, where: str) -> Message:
    """An assistant must say or call something, and a weight is 0 or 1."""
    if message["role"] == "assistant" and not message["content"].strip() and not message.get("tool_calls"):
        raise DataError(
            f"{where} is an empty assistant turn",
            place=origin,
            fix="Fill it or remove the record: there is nothing to learn from it.",
        )
    if "weight" in message and message["weight"] not in (0, 1):
        raise DataError(f'{where} has "weight" {message["weight"]!r}', place=origin, fix="A turn's weight is 0 or 1.")
    return message


def text_of(value: Any, origin: str, where: str, *, missing_ok: bool = False) -> str:
    """The text of a message's content: a string, or a list of {"type": "text", "text": ...} parts.

    Raises:
        DataError: Anything else, such as an image, a number or (unless `missing_ok`) null.
    """
    if isinstance(value, str):
        return value
    if value is None and missing_ok:
        return ""
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        return "".join(part["text"] for part in value)
    raise DataError(
        f"{where} must be text, found {type(value).__name__}: {str(value)[:60]}",
        place=origin,
        fix="Write a string; images, audio and other values are not read.",
    )


def _from_json(value: Any, origin: str, where: str) -> Any:
    """Decode a JSON string; other values pass through."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is not JSON: {error}",
            place=origin,
            fix='A function call is {"name": ..., "arguments": {...}}, or a list of them, as JSON.',
        ) from error


def _calls(value: Any, origin: str, where: str) -> list[dict[str, Any]]:
    """Function calls in any of their forms to the form that templates read."""
    decoded = _from_json(value, origin, where)
    items = decoded if isinstance(decoded, list) else [decoded]
    if not items:
        raise DataError(f"{where} has an empty list of function calls", place=origin)
    return [_call(item, origin, where) for item in items]


def _call(item: Any, origin: str, where: str) -> dict[str, Any]:
    """One call; arguments end as an object, because templates print them with `tojson`."""
    function = item.get("function", item) if isinstance(item, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DataError(
            f"{where} holds a function call without a name: {str(item)[:60]}",
            place=origin,
            fix='A function call is {"name": ..., "arguments": {...}}.',
        )
    arguments = function.get("arguments", function.get("parameters"))
    arguments = _from_json(arguments or {}, origin, f"{where} arguments")
    if not isinstance(arguments, dict):
        raise DataError(f"{where}: the arguments of {function['name']} must be an object", place=origin)
    call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {**call, "id": item["id"]} if isinstance(item.get("id"), str) else call


def parse_tools(value: Any, origin: str) -> list[dict[str, Any]] | None:
    """The `tools` column (a list, or a list as JSON) to [{"type": "function", "function": {...}}]; None for none.

    Raises:
        DataError: Not a list of functions with a name.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    decoded = _from_json(value, origin, '"tools"')
    items = decoded if isinstance(decoded, list) else [decoded]
    tools = []
    for item in items:
        function = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise DataError(
                f'"tools" holds an entry without a name: {str(item)[:60]}',
                place=origin,
                fix='Each tool is {"name": ..., "description": ..., "parameters": {...}}.',
            )
        tools.append({"type": "function", "function": function})
    return tools or None
