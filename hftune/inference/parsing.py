"""What a model has said as a message: its thoughts, its text and its calls of tools.

By the `response_template` of its tokenizer, else by TRL's for this chat template, else by the usual marks. What is no
call though it is marked as one leaves all of the answer text: nothing that was said is lost.
"""

from __future__ import annotations

import json
import re
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

    def message(self, prompt: str, text: str, tools: list[dict[str, Any]] | None = None, ended_by: str = "") -> Message:
        """An answer as a message, with `reasoning_content` and `tool_calls` where it has them.

        Args:
            prompt: The whole text that the model was given, which may hold the beginning of the answer (`<think>`).
            text: The answer, with the special tokens that mark its parts.
            tools: What was offered; arguments of calls get the types that it says.
            ended_by: The text of the token that ended it; "" for an answer that was cut.
        """
        said: Message = {"role": "assistant", "content": text}
        if self.render is None:
            return said
        # The parser wants the token that ended the answer where it ends a part as well.
        text += ended_by if ended_by in self.marks else ""
        try:
            parser = self.render.tokenizer.get_response_parser(self.template, prefix=self._begun(prompt), tools=tools)
            events = [*parser.feed(text), *parser.finalize()[1]]
            closed = [event["value"] for event in events if event["field"] == CALLS and "value" in event]
            calls = [call for value in closed for call in parse_calls(value, "a call")]
        except (ValueError, KeyError, RecursionError, DataError):
            return said
        chunks = [event for event in events if event["type"] == "region_chunk"]
        thought = "".join(event["text"] for event in chunks if event["field"] in _THOUGHTS).strip()
        content = "".join(event["text"] for event in chunks if event["field"] not in (*_THOUGHTS, CALLS))
        # White space behind a thought, an empty one as well, is nobody's text.
        content = content.lstrip() if any(event["field"] in _THOUGHTS for event in events) else content
        found: Message = {**said, "content": content.rstrip() if calls else content}
        return found | ({THOUGHT: thought} if thought else {}) | ({CALLS: calls} if calls else {})

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
    return {"start_anchor": _NOWHERE, "fields": fields}


def _usable(template: Any, render: Renderer) -> ResponseTemplate | None:
    """A response template; None for none, or one of a form that this transformers does not read."""
    if not isinstance(template, dict):
        return None
    try:
        render.tokenizer.get_response_parser(template, prefix="")
    except (ValueError, AttributeError, TypeError, re.error):
        return None
    return template
