"""What a model has said, as thoughts, text and calls of tools: while it says it, and as a message.

By the `response_template` of its tokenizer, else by TRL's for this chat template, else by the usual marks. What is no
call though it is marked as one stays text: nothing that was said is lost.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from trl import add_response_schema

from hftune.data.messages import Message
from hftune.data.rendering import Renderer
from hftune.data.tool_calls import parse_calls
from hftune.errors import DataError
from hftune.template_arguments import template_text

ResponseTemplate = dict[str, Any]

THOUGHT, TEXT, CALLS = "reasoning_content", "content", "tool_calls"
"""The fields of a message, and those of a response template."""
_THOUGHTS = (THOUGHT, "thinking", "reasoning")
_NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_HERMES = {"open": "<tool_call>", "close_pattern": r"</tool_call>\s*", "content": "json"}


def _tagged(opens: str, pair: str) -> dict[str, Any]:
    """Calls with a pair of tags for each argument, which are texts until the tool says of which type they are."""
    given = {"tag_pattern": pair, "value_parser": {"name": "text"}}
    closes = {"close_pattern": r"</tool_call>\s*"}
    return {"open_pattern": opens, **closes, "content": "xml-inline", "content_args": given, "transform": _NAMED}


# A mark in a chat template, and how calls are written in that form; the first that is there.
_USUAL = {
    "<arg_key>": _tagged(
        r"<tool_call>(?P<name>\S+)\n?",
        r"<arg_key>(?P<key>[^<]+)</arg_key>\s*\n<arg_value>(?P<value>.*?)</arg_value>",
    ),
    "<function=": _tagged(
        r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
        r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
    ),
    "[TOOL_CALLS]": {"open": "[TOOL_CALLS]", "content": "json"},
    "": _HERMES,
}
# What models write that learnt to think: at the start of an answer only, in its middle it is what is spoken of.
_THINKS = {"open_pattern": r"\A\s*<think>", "close_pattern": r"</think>\s*", "content": "text"}
# The prompt may hold it already, and its end where thinking is off.
_PREFILLED = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
_NOWHERE = "\x00hftune\x00"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer: some characters of a thought or of the text, or a whole call (`call`, as in messages)."""

    kind: str
    text: str = ""
    call: dict[str, Any] | None = None


class AnswerForm:
    """How answers are written by one chat template with its arguments.

    Args:
        render: Writes conversations by the template; None for a model without one, whose answers are text.

    Attributes:
        marks: All that the parts of an answer are told by.
    """

    def __init__(self, render: Renderer | None) -> None:
        self.render, self.marks = render, ""
        self.template: ResponseTemplate | None = None
        if render is None:
            return
        own = getattr(render.tokenizer, "response_template", None)
        self.template = _usable(own, render) or _usable(_of_trl(render), render)
        if self.template is None:
            self.template = _usual(template_text(render.tokenizer))
        # They are patterns, in JSON: a token may be written with backslashes in it.
        self.marks = re.sub(r"\\+(?=\W)", "", json.dumps(self.template["fields"], ensure_ascii=False))

    def reader(self, prompt: str, tools: list[dict[str, Any]] | None = None) -> AnswerReader:
        """A reader for the answer to one prompt.

        Args:
            prompt: The whole text that the model is given, which may hold the beginning of the answer (`<think>`).
            tools: What was offered; arguments of calls get the types that it says.
        """
        if self.render is None:
            return AnswerReader(lambda: None)
        make = partial(self.render.tokenizer.get_response_parser, prefix=self._begun(prompt), tools=tools)
        return AnswerReader(partial(make, self.template), self.marks)

    def _begun(self, prompt: str) -> str:
        """A prompt in which the response template finds where the answer begins; else what it holds of the answer."""
        template = self.template or {}
        anchor = template.get("start_anchor_pattern") or re.escape(template.get("start_anchor") or _NOWHERE)
        if re.search(anchor, prompt):
            return prompt
        prefilled = _PREFILLED.search(prompt)
        return prefilled.group() if prefilled else ""

    def unmarked(self, tokenizer: Any) -> set[int]:
        """Ids of special tokens that are no mark of the parts of an answer, so that they are no part of its text."""
        pairs = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
        return {number for token, number in pairs if str(token) not in self.marks}


class AnswerReader:
    """Takes an answer as it comes, with all special tokens but that which ended it, and hands out its parts.

    Args:
        make: Makes a parser of transformers; or None: all is text.
        marks: The parser wants the token as well that ended the answer where it is one of them.
    """

    def __init__(self, make: Callable[[], Any], marks: str = "") -> None:
        self.make, self.marks, self.parser = make, marks, make()
        self.raw = self._body = ""
        self._blank = True

    def feed(self, text: str) -> list[Part]:
        """The parts that these characters complete; what may be the start of a mark is held back."""
        self.raw += text
        return self._take(text, end=False)

    def finish(self, ended_by: str = "") -> list[Part]:
        """The last parts, when the answer has ended.

        Args:
            ended_by: The text of the token that ended it; "" for an answer that was cut.
        """
        last = self.feed(ended_by) if ended_by and ended_by in self.marks else []
        return last + self._take("", end=True)

    def message(self) -> Message:
        """All that was said so far as a message, with `reasoning_content` and `tool_calls` where it has them."""
        # Once more, as a whole: where a mark may be longer, a parser that is fed piece by piece takes the shorter one.
        whole = AnswerReader(self.make)
        parts = [*whole.feed(self.raw), *whole.finish()]
        thought, text = ("".join(part.text for part in parts if part.kind == kind) for kind in (THOUGHT, TEXT))
        calls = [part.call for part in parts if part.call is not None]
        message: Message = {"role": "assistant", "content": text.rstrip() if calls else text}
        message |= {THOUGHT: thought.strip()} if thought.strip() else {}
        return message | ({CALLS: calls} if calls else {})

    def _take(self, text: str, *, end: bool) -> list[Part]:
        if self.parser is None:
            return [Part(TEXT, text)] if text else []
        try:
            events = self.parser.finalize()[1] if end else self.parser.feed(text)
        except (ValueError, KeyError, RecursionError):
            # A tokenizer's own template may not take what its model says; all from here on is text.
            self.parser, body, self._body = None, self._body, ""
            return [Part(TEXT, body + text)] if body + text else []
        return [part for event in events for part in self._part(event)]

    def _part(self, event: dict[str, Any]) -> list[Part]:
        name, kind = event["field"], event["type"]
        if name == CALLS:
            return self._call(event)
        if kind != "region_chunk" or not event["text"]:
            return []
        if name in _THOUGHTS:
            return [Part(THOUGHT, event["text"])]
        # White space between marks is nobody's text.
        self._blank &= not event["text"].strip()
        return [] if self._blank else [Part(TEXT, event["text"])]

    def _call(self, event: dict[str, Any]) -> list[Part]:
        if event["type"] == "region_chunk":
            self._body += event["text"]
        if event["type"] != "region_close":
            return []
        body, self._body = self._body, ""
        try:
            found = parse_calls(event["value"], "a call")
        except DataError:
            return [Part(TEXT, body)]
        return [Part(CALLS, call=call) for call in found]


def _of_trl(render: Renderer) -> ResponseTemplate | None:
    """TRL's response template for a chat template; None for one that it does not know."""
    holder = SimpleNamespace(chat_template=render.tokenizer.chat_template)
    try:
        found: ResponseTemplate = add_response_schema(holder).response_template
    except ValueError:
        return None
    return found


def _usual(chat_template: str) -> ResponseTemplate:
    """The response template for a chat template that nobody has written one for, by what stands in it."""
    calls = next(found for mark, found in _USUAL.items() if mark in chat_template)
    fields = {THOUGHT: _THINKS, CALLS: {**calls, "repeats": True}, TEXT: {"content": "text"}}
    # The part of the answer that the prompt holds is given without what stands before it: there is no anchor.
    return _lenient({"start_anchor": _NOWHERE, "fields": fields})


def _usable(template: Any, render: Renderer) -> ResponseTemplate | None:
    """A response template as it is used here; None for none, or one of a form that this transformers does not read."""
    if not isinstance(template, dict):
        return None
    template = _lenient(template)
    try:
        render.tokenizer.get_response_parser(template, prefix="")
    except (ValueError, AttributeError, TypeError, re.error):
        return None
    return template


def _lenient(template: ResponseTemplate) -> ResponseTemplate:
    """The template with text as it was said, and with broken JSON as text instead of an error."""
    template = copy.deepcopy(template)
    fields = template.get("fields")
    for one in fields.values() if isinstance(fields, dict) else ():
        if isinstance(one, dict) and one.get("content", "text") in ("text", "json"):
            more = {"strip": False} if one.get("content", "text") == "text" else {"allow_non_json": True}
            one["content_args"] = {**(one.get("content_args") or {}), **more}
    return template
