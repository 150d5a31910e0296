"""What a model has said, as thoughts, text and calls of tools: while it says it, and as a message.

By the `response_template` of its tokenizer, else as `written_turns.py` reads it off the chat template itself, else by
TRL's for this chat template. What is no call though it is marked as one stays text: nothing that was said is lost.
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
from hftune.tools.talking.written_turns import CALLS, TEXT, THOUGHT, ResponseTemplate, WrittenTurns

_THOUGHTS = (THOUGHT, "thinking", "reasoning")


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
    """

    def __init__(self, render: Renderer | None) -> None:
        self.render = render
        self.template: ResponseTemplate | None = None
        self.written: WrittenTurns | None = None
        if render is None:
            return
        self.template = _usable(getattr(render.tokenizer, "response_template", None), render)
        if self.template is None:
            self.written = WrittenTurns(render)
            # Calls that are not written as JSON or between tags.
            if self.written.unread_calls:
                self.template = _usable(_of_trl(render), render)

    def reader(self, prompt: str, tools: list[dict[str, Any]] | None = None) -> AnswerReader:
        """A reader for the answer to one prompt.

        Args:
            prompt: The whole text that the model is given, which may hold the beginning of the answer (`<think>`).
            tools: What was offered; arguments of calls get the types that it says.
        """
        if self.render is None:
            return AnswerReader(lambda: None)
        template, prefix = self.template, prompt
        if template is None and self.written is not None:
            template, prefix = self.written.template, self.written.prefix(prompt)
        make = self.render.tokenizer.get_response_parser
        return AnswerReader(partial(make, template, prefix=prefix, tools=tools), whole=self.template is not None)


class AnswerReader:
    """Takes an answer as it comes, with all special tokens but that which ended it, and hands out its parts.

    Args:
        make: Makes a parser of transformers; or None: all is text.
        whole: Whether the parser wants the token as well that ended the answer.

    Attributes:
        raw: All that was said, as it was said.
    """

    def __init__(self, make: Callable[[], Any], *, whole: bool = False) -> None:
        self.make, self.whole, self.parser = make, whole, make()
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
        last = self.feed(ended_by) if self.whole and ended_by else []
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
            found = parse_calls(event["value"], "the answer", "a call")
        except DataError:
            return [Part(TEXT, body)]
        return [Part(CALLS, call=call) for call in found]


def unmarked(tokenizer: Any, form: AnswerForm) -> set[int]:
    """Ids of special tokens that are no mark of the parts of an answer, so that they are no part of its text."""
    template = form.template or (form.written.template if form.written is not None else {})
    # Patterns, in JSON: a token may be written with backslashes in it.
    marks = re.sub(r"\\+(?=\W)", "", json.dumps(template.get("fields", {}), ensure_ascii=False))
    pairs = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
    return {number for token, number in pairs if str(token) not in marks}


def _of_trl(render: Renderer) -> ResponseTemplate | None:
    """TRL's response template for a chat template; None for one that it does not know."""
    holder = SimpleNamespace(chat_template=render.tokenizer.chat_template)
    try:
        found: ResponseTemplate = add_response_schema(holder).response_template
    except ValueError:
        return None
    return found


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
