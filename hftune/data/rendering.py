"""Conversations as text, by the chat template of a tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.chat_templates import GENERAL, text_of, tokens_of
from hftune.data.formats import note_unread
from hftune.data.messages import Message
from hftune.data.tool_calls import with_calls
from hftune.errors import DataError
from hftune.template_arguments import (
    FIELD,
    TEMPLATE_FAULTS,
    TemplateArguments,
    arguments_of,
    check_arguments,
    names_read,
    template_text,
)


def require_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer without a chat template.

    Raises:
        DataError: Saying how to give one.
    """
    if not tokenizer.chat_template:
        # ChatML first: nearly all tools read it. Without its tokens they can be added.
        known = tokenizer.get_vocab().keys()
        fitting = (name for name in ("chatml", *GENERAL) if tokens_of(text_of(name)) <= known)
        proposed = next(fitting, "chatml --add_special_tokens '<|im_start|>,<|im_end|>'")
        raise DataError(
            "the tokenizer has no chat template, so conversations cannot be written as text",
            place="--chat_template",
            fix=f"Add --chat_template {proposed}; or give a .jinja file, or an instruct model and its tokenizer.",
        )


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

    def note_tools(self, tools: Tools) -> None:
        """Note that a record offers tools, if the template does not write them."""
        if tools and not _TOOLS.search(self.template):
            note_unread("tools, which the chat template does not write")

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
    by_id = {str(one.get("tool_call_id")): one for one in results}
    ids = [str(call.get("id")) for call in calls]
    if len(by_id) == len(calls) and by_id.keys() == {*ids}:
        results = [by_id[name] for name in ids]
    return results if len(results) == len(calls) else []


# Sets of arguments of records that are remembered.
MOST_SETS = 64


class Renderer:
    """Writes conversations by the chat template of one tokenizer.

    Args:
        arguments: What the template is given besides what is kept with the tokenizer; these win.

    Raises:
        DataError: Arguments that the template does not read.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, arguments: TemplateArguments | None = None) -> None:
        self.tokenizer = tokenizer
        if arguments:
            check_arguments(arguments, self.template, FIELD, DataError)
        self.own = arguments or {}
        self.arguments = arguments_of(tokenizer) | self.own
        # All added tokens, not only those marked as special: terminators of some models are not.
        self.special_texts = tuple(token for token in tokenizer.get_added_vocab() if token.strip())
        self.others: dict[str, Renderer] = {}
        self.prompted: dict[str, bool] = {}
        """Whether there is a generation prompt behind a message of a role, as far as it was asked (`TurnFinder`)."""

    @cached_property
    def asks(self) -> bool:
        """Whether the template has a generation prompt."""
        asked, plain = self.prompt([_ASKED]), self.or_none([_ASKED])
        return asked is None or asked != plain

    @property
    def template(self) -> str:
        """The template's text; of several (one for tools, say) all of them."""
        return template_text(self.tokenizer)

    def given(self, arguments: TemplateArguments | None) -> Renderer:
        """The renderer for a record with these arguments of its own; this one for none.

        Raises:
            DataError: Arguments that the template does not read.
        """
        if not arguments:
            return self
        key = json.dumps(arguments, sort_keys=True)
        if key not in self.others:
            # Data have two or three, unless they hold dates or names.
            if len(self.others) >= MOST_SETS:
                self.others.clear()
            self.others[key] = Renderer(self.tokenizer, arguments)
        return self.others[key]

    def __call__(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, *, add_generation_prompt: bool = False
    ) -> str:
        """The text of a conversation.

        Raises:
            DataError: The template refuses it (for example a system turn, or roles that do not alternate).
        """
        return self._written(self.reads.named(messages), tools, add_generation_prompt)

    def or_none(self, messages: list[Message], tools: Tools = None, *, prompt: bool = False) -> str | None:
        """The text of a conversation, with the generation prompt if asked; None where the template refuses it."""
        try:
            return self(messages, tools, add_generation_prompt=prompt)
        except DataError:
            return None

    def prompt(self, messages: list[Message], tools: Tools = None) -> str | None:
        """A conversation with the generation prompt behind it; None where the template refuses it."""
        return self.or_none(messages, tools, prompt=True)

    @cached_property
    def thoughts(self) -> EmptyThoughts:
        """The finder of empty thoughts."""
        return EmptyThoughts(self)

    @cached_property
    def reads(self) -> Reads:
        """What the template reads of messages."""
        return Reads(self._written, str(self.tokenizer.chat_template))

    def _written(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, add_generation_prompt: bool = False
    ) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt, **self.arguments
            )
        except TEMPLATE_FAULTS as error:
            roles = " ".join(message["role"] for message in messages)
            raise DataError(
                f"the chat template refuses this conversation ({roles}): {error}",
                fix="Change the record; or leave such records out with --on_bad_record drop; or give a template that "
                "takes it, as --chat_template FILE.jinja.",
                kind="refused by the chat template",
            ) from error
        return str(text)


# <think>, </think>, [THINK], <|START_THINKING|>, <seed:think>, ◁think▷, <reasoning>.
_TAG = r"[<\[◁][^<>\[\]◁▷\s]*(?:think|thought|reason)[^<>\[\]◁▷\s]*[>\]▷]"
_OPEN = rf"(?P<open>(?![^>\]▷]*(?:/|end)){_TAG}|<\|channel>thought)"
_CLOSED = re.compile(rf"(?:(?=[^>\]▷]*(?:/|end)){_TAG}|<channel\|>)\s*\Z", re.IGNORECASE)
_EMPTY = re.compile(rf"{_OPEN}\s*(?!(?P=open)){_TAG}|<\|channel>thought\s*<channel\|>", re.IGNORECASE)
_OPENED = re.compile(rf"{_OPEN}\s*\Z", re.IGNORECASE)
_SWITCH = re.compile(r"think|reason", re.IGNORECASE)
_WHITE_SPACE = re.compile(r"\s*")
# Longer than any opening mark with its white space.
_MARK = 64


def opened_thoughts(text: str) -> re.Match[str] | None:
    """The mark (`open`) with which thoughts are opened at the end of a text, and the white space behind it."""
    return _OPENED.search(text[-_MARK:])


class EmptyThoughts:
    """Finds in what one template writes the empty thoughts before answers without any, as `<think>\\n\\n</think>`.

    Served with thinking off, the prompt ends with them: the model never writes them, so they are not trained.
    """

    def __init__(self, render: Renderer) -> None:
        self.render = render

    @cached_property
    def off(self) -> list[Renderer]:
        """Renderers with thinking switched off, one for each argument that does it: their prompts end with marks."""
        names = [name for name in sorted(names_read(self.render.template)) if _SWITCH.search(name)]
        others = [
            self.render.given({**self.render.own, name: False})
            for name in names
            if self.render.arguments.get(name) is not False
        ]
        usual = self.render.prompt([_ASKED])
        prompts = [(other, other.prompt([_ASKED])) for other in others if usual is not None]
        return [other for other, prompt in prompts if prompt and prompt != usual and _CLOSED.search(prompt[-_MARK:])]

    @cached_property
    def tails(self) -> list[str]:
        """What prompts end with where thinking is off: empty thoughts and the white space behind them."""
        tails = []
        for render in (self.render, *self.off):
            prompt = render.prompt([_ASKED]) or ""
            # The last ones: a system text may speak of such marks.
            last = [*_EMPTY.finditer(prompt)][-1:]
            tails += [prompt[one.start() :] for one in last if not prompt[one.end() :].strip()]
        return sorted(set(tails), key=len, reverse=True)

    def end(self, text: str, start: int) -> int:
        """Where empty thoughts at `start`, or opened right before it, end; `start` where there are none."""
        head = text[max(0, start - _MARK) : start]
        opened = opened_thoughts(head)
        # GLM's line break before them is not of the generation prompt.
        begin = start - len(head) + opened.start() if opened else _behind_white_space(text, start)
        found = _EMPTY.match(text, begin)
        if found is None or found.end() <= start:
            return start
        tail = next((tail for tail in self.tails if text.startswith(tail, begin)), None)
        if tail is not None:
            return max(start, begin + len(tail))
        end = found.end()
        # As those write it that write line breaks there; more of them are the answer's own.
        return end + len(text[end : end + 2]) - len(text[end : end + 2].lstrip("\n"))

    def begin_at(self, text: str, start: int) -> bool:
        """Whether empty thoughts begin at `start`, not in the prompt before it."""
        return _EMPTY.match(text, _behind_white_space(text, start)) is not None


def _behind_white_space(text: str, start: int) -> int:
    found = _WHITE_SPACE.match(text, start)
    return found.end() if found else start
