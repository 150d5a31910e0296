"""What of a message a chat template writes: thoughts under which name, and calls how.

Found by writing small conversations, so that no list of templates is needed. Messages have thoughts as
`reasoning_content`; some templates read `thinking` or `reasoning`. Thoughts in a text (`<think>`) and calls in a text
stay there for templates that know no better, and become fields for those that do: so they are written where the model
at hand writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

from hftune.data.readers.strict_json import Malformed, loads
from hftune.data.records.messages import Message
from hftune.data.records.unread import note_unread
from hftune.data.records.written_calls import with_calls
from hftune.errors import DataError

Tools = list[dict[str, Any]] | None
THOUGHTS = "reasoning_content"

_NAMES = (THOUGHTS, "thinking", "reasoning")
_ASKED: Message = {"role": "user", "content": "a"}
_WORDS = "HFTUNEFIRST", "HFTUNESECOND"
_CALLS = [{"id": "abcdefghi", "type": "function", "function": {"name": word, "arguments": {}}} for word in _WORDS]
_TOOLS = re.compile(r"\btools\b")
# Without an opening mark where the prompt has opened them.
_IN_TEXT = re.compile(r"\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)


class Reads:
    """What one template reads.

    Args:
        write: Writes messages by it; may raise a DataError.
        template: Its text.
    """

    def __init__(self, write: Callable[[list[Message]], str], template: str) -> None:
        self.write, self.template = write, template

    def _written(self, **answer: Any) -> str:
        try:
            return self.write([_ASKED, {"role": "assistant", "content": "b"} | answer])
        except DataError:
            return ""

    @cached_property
    def thoughts(self) -> str:
        """The name under which the template reads thoughts; ours where it reads none."""
        # Gemma's writes only thoughts before calls.
        found = (
            name
            for more in ({}, {"tool_calls": _CALLS[1:], "content": ""})
            for name in _NAMES
            if _WORDS[0] in self._written(**{name: _WORDS[0]}, **more)
        )
        return next(found, THOUGHTS)

    @cached_property
    def lifts(self) -> bool:
        """Whether thoughts in a text must be made a field: the template writes it, with other marks than a text has."""
        field = self._written(**{self.thoughts: _WORDS[0]})
        return _WORDS[0] in field and "</think>" not in field

    @cached_property
    def calls(self) -> bool:
        """Whether the template reads calls."""
        return "tool_calls" in self.template

    @cached_property
    def one_call(self) -> bool:
        """Whether the template writes only the first call of a message (gpt-oss's)."""
        text = self._written(content="", tool_calls=_CALLS)
        return _WORDS[0] in text and _WORDS[1] not in text

    def note_tools(self, tools: Tools, origin: str) -> None:
        """Note that a record offers tools, if the template does not write them."""
        if tools and not _TOOLS.search(self.template):
            note_unread("tools, which the chat template does not write", origin)

    def named(self, messages: list[Message]) -> list[Message]:
        """The messages with thoughts under the name that the template reads."""
        name = self.thoughts
        if name == THOUGHTS or not any(THOUGHTS in message for message in messages):
            return messages
        return [{name if key == THOUGHTS else key: part for key, part in one.items()} for one in messages]

    def said(self, messages: list[Message], tools: Tools) -> list[Message]:
        """The messages of a record with those thoughts and calls as fields that the template reads as fields."""
        if tools is not None and self.calls:
            messages = with_calls(messages, tools)
        if self.lifts:
            messages = [_lifted(message) for message in messages]
        if any(len(message.get("tool_calls") or ()) > 1 for message in messages) and self.one_call:
            messages = _one_call_each(messages)
        return messages


def _lifted(message: Message) -> Message:
    """An assistant's message with the thoughts of its text as a field."""
    content = message["content"]
    if message["role"] != "assistant" or "</think>" not in content or THOUGHTS in message:
        return message
    found = _IN_TEXT.match(content)
    if found is None or "<think>" in found[1] or not (content[found.end() :] or message.get("tool_calls")):
        return message
    thoughts = {THOUGHTS: found[1].strip()} if found[1].strip() else {}
    return {**message, "content": content[found.end() :], **thoughts}


def _one_call_each(messages: list[Message]) -> list[Message]:
    """Messages of several calls as several messages, each with its result behind it, where all have one."""
    found: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls") or []
        if len(calls) > 1:
            results = [*takewhile(lambda one: one["role"] == "tool", islice(messages, index, None))]
            parts = _results_of(calls, results)
            if parts:
                index += len(results)
                rest = {key: part for key, part in message.items() if key != THOUGHTS} | {"content": ""}
                for number, (call, result) in enumerate(zip(calls, parts, strict=True)):
                    found += [{**(rest if number else message), "tool_calls": [call]}, result]
                continue
        found.append(message)
    return found


def _results_of(calls: list[dict[str, Any]], results: list[Message]) -> list[Message]:
    """The result of each call; none where it cannot be told."""
    if len(results) == 1:
        # LLaMA-Factory's sets have those of all calls in one text, a list with the names of the functions.
        results = _listed(calls, results[0])
    by_id = {str(one.get("tool_call_id")): one for one in results}
    ids = [str(call.get("id")) for call in calls]
    if len(by_id) == len(calls) and by_id.keys() == {*ids}:
        results = [by_id[name] for name in ids]
    return results if len(results) == len(calls) else []


def _listed(calls: list[dict[str, Any]], result: Message) -> list[Message]:
    try:
        parts = loads(result["content"].encode("utf-8", "surrogatepass"))
    except Malformed:
        return []
    names = [part.get("name") if isinstance(part, dict) else None for part in parts] if isinstance(parts, list) else []
    if names != [call["function"]["name"] for call in calls]:
        return []
    return [{**result, "content": json.dumps([part], ensure_ascii=False)} for part in parts]
