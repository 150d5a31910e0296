"""Function calls and the tools offered, from all the ways they are written to the one that chat templates read."""

from __future__ import annotations

from typing import Any

from hftune.data.readers.nested_json import from_json
from hftune.errors import DataError, shown

BAD_CALL = "broken function call"
BAD_TOOLS = "broken tools"

_CALL_FIX = 'A function call is {"name": ..., "arguments": {...}}, or a list of them, as JSON.'
_TOOL_FIX = 'Each tool is {"name": ..., "description": ..., "parameters": {...}}.'


def parse_calls(value: Any, origin: str, where: str) -> list[dict[str, Any]]:
    """Function calls (an object, a list, or either as JSON) to [{"type": "function", "function": {...}}].

    Raises:
        DataError: No JSON, no call, a call without a name, or arguments that are no object.
    """
    decoded = from_json(value, origin, where, fix=_CALL_FIX)
    items = decoded if isinstance(decoded, list) else [decoded]
    if not items:
        raise DataError(f"{where} has an empty list of function calls", place=origin, fix=_CALL_FIX, kind=BAD_CALL)
    return [_call(from_json(item, origin, where, fix=_CALL_FIX), origin, where) for item in items]


def _call(item: Any, origin: str, where: str) -> dict[str, Any]:
    """One call; arguments end as an object, because templates print them with `tojson`."""
    function = _function(item)
    if function is None:
        cause = f"{where} holds a function call without a name: {shown(item)}"
        raise DataError(cause, place=origin, fix=_CALL_FIX, kind=BAD_CALL)
    # Llama's exports call them parameters, Anthropic's input.
    named = (function[key] for key in ("arguments", "parameters", "input") if function.get(key) is not None)
    given = next(named, None)
    # An empty string is how some write a call without arguments.
    arguments = from_json(given, origin, f"{where} arguments", fix=_CALL_FIX) if given not in (None, "") else {}
    if not isinstance(arguments, dict):
        cause = (
            f"{where}: the arguments of {shown(function['name'])} must be an object, found {type(arguments).__name__}"
        )
        raise DataError(cause, place=origin, fix=_CALL_FIX, kind=BAD_CALL)
    call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    # Some templates print it, such as Mistral's; most ignore it.
    return {**call, "id": item["id"]} if isinstance(item.get("id"), str) else call


def parse_tools(value: Any, origin: str) -> list[dict[str, Any]] | None:
    """The `tools` column (a list, or a list as JSON) to [{"type": "function", "function": {...}}]; None for none.

    Raises:
        DataError: Not a list of functions with a name.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    decoded = from_json(value, origin, '"tools"', fix=_TOOL_FIX)
    items = decoded if isinstance(decoded, list) else [decoded]
    tools = []
    for item in items:
        # Some write each tool of a list as a string of its own.
        function = _function(from_json(item, origin, '"tools"', fix=_TOOL_FIX))
        if function is None:
            cause = f'"tools" holds an entry without a name: {shown(item)}'
            raise DataError(cause, place=origin, fix=_TOOL_FIX, kind=BAD_TOOLS)
        tools.append({"type": "function", "function": _schema(function, origin)})
    return tools or None


def _schema(function: dict[str, Any], origin: str) -> dict[str, Any]:
    """A function as OpenAI's chat API has it: Anthropic calls its parameters `input_schema`."""
    known = {"input_schema": "parameters", "inputSchema": "parameters"}
    found = {known.get(key, key): part for key, part in function.items()}
    # OpenAI's Responses say that it is a function where its name is.
    if found.get("type") == "function":
        del found["type"]
    # Some write it as a string of its own.
    if str(found.get("parameters")).startswith("{") and isinstance(found["parameters"], str):
        found["parameters"] = from_json(found["parameters"], origin, '"tools"', fix=_TOOL_FIX)
    return found


def _function(item: Any) -> dict[str, Any] | None:
    """The object that names a function, bare or inside {"function": ...}."""
    function = item.get("function", item) if isinstance(item, dict) else None
    return function if isinstance(function, dict) and isinstance(function.get("name"), str) else None
