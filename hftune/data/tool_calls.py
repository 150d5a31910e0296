"""Function calls and the tools offered, from all the ways they are written to the one that chat templates read.

Calls and results may also stand in the text of turns. Templates have forms of their own for calls, and find the last
question by results: only as messages of their own are calls written as the model at hand writes them. They are read
where the record offers the functions that are called; what is not read whole stays the text that it is. Known are
`<tool_call>` with JSON (Hermes, Qwen), and `Action:` with `Action Input:` (ReAct, MedicalGPT's pairs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hftune.data.strict_json import from_json, loads
from hftune.errors import DataError, shown

BAD_CALL = "broken function call"

_CALL_FIX = 'A function call is {"name": ..., "arguments": {...}}, or a list of them, as JSON.'
_TOOL_FIX = 'Each tool is {"name": ..., "description": ..., "parameters": {...}}.'


def parse_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Function calls (an object, a list, or either as JSON) to [{"type": "function", "function": {...}}].

    Raises:
        DataError: No JSON, no call, a call without a name, or arguments that are no object.
    """
    decoded = from_json(value, where, fix=_CALL_FIX)
    items = decoded if isinstance(decoded, list) else [decoded]
    if not items:
        raise DataError(f"{where} has an empty list of function calls", fix=_CALL_FIX, kind=BAD_CALL)
    return [_call(from_json(item, where, fix=_CALL_FIX), where) for item in items]


def _call(item: Any, where: str) -> dict[str, Any]:
    """One call; arguments end as an object, because templates print them with `tojson`."""
    function = _function(item)
    if function is None:
        cause = f"{where} holds a function call without a name: {shown(item)}"
        raise DataError(cause, fix=_CALL_FIX, kind=BAD_CALL)
    # Llama's exports call them parameters, Anthropic's input.
    named = (function[key] for key in ("arguments", "parameters", "input") if function.get(key) is not None)
    given = next(named, None)
    # An empty string is how some write a call without arguments.
    arguments = from_json(given, f"{where} arguments", fix=_CALL_FIX) if given not in (None, "") else {}
    if not isinstance(arguments, dict):
        cause = (
            f"{where}: the arguments of {shown(function['name'])} must be an object, found {type(arguments).__name__}"
        )
        raise DataError(cause, fix=_CALL_FIX, kind=BAD_CALL)
    call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    # Some templates print it, such as Mistral's; most ignore it.
    return {**call, "id": item["id"]} if isinstance(item.get("id"), str) else call


def parse_tools(value: Any) -> list[dict[str, Any]] | None:
    """The `tools` column (a list, or a list as JSON) to [{"type": "function", "function": {...}}]; None for none.

    Raises:
        DataError: Not a list of functions with a name.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    decoded = from_json(value, '"tools"', fix=_TOOL_FIX)
    items = decoded if isinstance(decoded, list) else [decoded]
    tools = []
    for item in items:
        # Some write each tool of a list as a string of its own.
        function = _function(from_json(item, '"tools"', fix=_TOOL_FIX))
        if function is None:
            cause = f'"tools" holds an entry without a name: {shown(item)}'
            raise DataError(cause, fix=_TOOL_FIX, kind="broken tools")
        tools.append({"type": "function", "function": _schema(function)})
    return tools or None


def _schema(function: dict[str, Any]) -> dict[str, Any]:
    """A function as OpenAI's chat API has it: Anthropic calls its parameters `input_schema`."""
    known = {"input_schema": "parameters", "inputSchema": "parameters"}
    found = {known.get(key, key): part for key, part in function.items()}
    # OpenAI's Responses say that it is a function where its name is.
    if found.get("type") == "function":
        del found["type"]
    # Some write it as a string of its own.
    if str(found.get("parameters")).startswith("{") and isinstance(found["parameters"], str):
        found["parameters"] = from_json(found["parameters"], '"tools"', fix=_TOOL_FIX)
    return found


def _function(item: Any) -> dict[str, Any] | None:
    """The object that names a function, bare or inside {"function": ...}."""
    function = item.get("function", item) if isinstance(item, dict) else None
    return function if isinstance(function, dict) and isinstance(function.get("name"), str) else None


Tools = list[dict[str, Any]]

THOUGHTS = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
"""Thoughts at the beginning of a text, with the white space around them."""

# Where calls begin; all behind is calls. No pattern here repeats what may repeat: records may be made to be slow.
_BEGIN = re.compile(r"<tool_call>|^Action:[^\n]*\n[ \t]*Action Input:", re.MULTILINE)
_ACTION = re.compile(r"Action:[ \t]*(\S+)[ \t]*\n[ \t]*Action Input:(.*)", re.DOTALL)


def thoughts_and_call(text: Any) -> tuple[str, Any]:
    """What stands before a call that is a turn of its own, such as thoughts, and the call or a list of them."""
    if not isinstance(text, str):
        return "", text
    found = THOUGHTS.match(text)
    end = found.end() if found else 0
    begin = max(text.find("<tool_call>", end), end)
    return text[:begin].strip(), _blocks(text[begin:], "tool_call") or text[begin:]


def with_calls(messages: list[dict[str, Any]], tools: Tools | None) -> list[dict[str, Any]]:
    """The messages, with calls and results in their texts as fields and messages of their own.

    Args:
        tools: What the record offers; without a tool nothing is a call.
    """
    if not tools or not any(_BEGIN.search(message["content"]) for message in messages):
        return messages
    offered = {tool["function"]["name"]: tool["function"] for tool in tools}
    found: list[dict[str, Any]] = []
    for message in messages:
        called = bool(found) and (found[-1]["role"] == "tool" or bool(found[-1].get("tool_calls")))
        if message["role"] == "assistant":
            found.append(_called(message, offered))
        elif called and message["role"] in ("tool", "user") and (said := _blocks(message["content"], "tool_response")):
            # The line breaks around a result are the template's.
            results = [text.removeprefix("\n").removesuffix("\n") for text in said]
            found += [{**message, "role": "tool", "content": text} for text in results]
        else:
            found.append(message)
    return found


def _called(message: dict[str, Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant's message with the calls that its text ends with."""
    content = message["content"]
    # Behind its thoughts, which may speak of calls.
    begin = content.rfind("</think>") + len("</think>") if "</think>" in content else 0
    written = None if message.get("tool_calls") else _BEGIN.search(content, begin)
    calls = [] if written is None else _calls(content[written.start() :], offered)
    if written is None or not calls or None in calls:
        return message
    try:
        parsed = parse_calls(calls, "")
    except DataError:
        return message
    return {**message, "content": content[: written.start()].rstrip(), "tool_calls": parsed}


def _blocks(text: str, tag: str) -> list[str]:
    """What stands between <tag> and </tag>, if the text is made of such blocks and nothing else."""
    first, *parts = text.split(f"<{tag}>")
    blocks = [part.partition(f"</{tag}>") for part in parts]
    whole = not first.strip() and all(closed and not rest.strip() for _, closed, rest in blocks)
    return [block for block, _, _ in blocks] if whole else []


def _calls(text: str, offered: Mapping[str, Any]) -> list[dict[str, Any] | None]:
    """The calls that a text is made of; None for one that is not understood."""
    if text.startswith("<"):
        return [_known(_json(block), offered) for block in _blocks(text, "tool_call")]
    pairs = [_ACTION.fullmatch(part) for part in re.split(r"\n(?=Action:)", text)]
    return [found and _known({"name": found[1], "arguments": _json(found[2])}, offered) for found in pairs]


def _known(call: Any, offered: Mapping[str, Any]) -> dict[str, Any] | None:
    """A call of a function that is offered; None for anything else."""
    return call if isinstance(call, dict) and str(call.get("name")) in offered else None


def _json(text: str) -> Any:
    """The value of a text of JSON; the text where it is none, which is no call and are no arguments."""
    try:
        return loads(text.encode("utf-8", "surrogatepass"))
    except DataError:
        return text
