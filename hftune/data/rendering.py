"""Conversations as text, by the chat template of a tokenizer."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.chat_templates import CHATML, GENERAL, text_of, tokens_of
from hftune.data.formats import note_unread
from hftune.data.messages import Message
from hftune.data.readers.strict_json import Malformed, loads
from hftune.data.tool_calls import with_calls
from hftune.errors import DataError
from hftune.template_arguments import (
    TEMPLATE_FAULTS,
    TemplateArguments,
    arguments_of,
    check_record_arguments,
    template_text,
)

_UNDEFINED = re.compile(r"'(\w+_token)' is undefined")
_TURNS = ("<|im_start|>", "<|im_end|>")


def require_chat_template(tokenizer: PreTrainedTokenizerBase, flag: str = "--chat_template") -> None:
    """Refuse a tokenizer without a chat template.

    Raises:
        DataError: Saying how to give one.
    """
    if not tokenizer.chat_template:
        # ChatML first: nearly all tools read it. Without its tokens they can be added.
        fitting = ["chatml"] if tokens_of(CHATML) <= tokenizer.get_vocab().keys() else fitting_templates(tokenizer)
        proposed = fitting[0] if fitting else f"chatml --add_special_tokens '{','.join(_TURNS)}'"
        raise DataError(
            "the tokenizer has no chat template, so conversations cannot be written as text",
            place=flag,
            fix=f"Add {flag} {proposed}; or give a .jinja file, or an instruct model and its tokenizer.",
        )


def fitting_templates(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The general templates whose special tokens are in the tokenizer's vocabulary."""
    known = tokenizer.get_vocab().keys()
    return [name for name in GENERAL if tokens_of(text_of(name)) <= known]


def without_token(error: Exception, tokenizer: PreTrainedTokenizerBase) -> DataError | None:
    """The message for a template that asks for a token which the tokenizer has not; None for another error."""
    # Jinja's own words; the name is what the template has asked for.
    named = _UNDEFINED.match(str(error))
    if named is None:
        return None
    fitting = next((f"or --chat_template {name}, " for name in fitting_templates(tokenizer)), "")
    return DataError(
        f"the chat template writes the {named[1]}, and this tokenizer has none: it belongs to another model",
        place="--chat_template",
        fix=f"Leave --chat_template out, {fitting}or give a tokenizer with {named[1]} by --tokenizer_name_or_path.",
        kind="a template of another model",
    )


class TemplateProposals:
    """Proposes templates for one tokenizer, searching once for each sort of fault and not for each record.

    Args:
        tokenizer: With the template that has the faults.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.found: dict[str, str | None] = {}

    def fix_for(self, what: str, otherwise: str, works: Callable[[PreTrainedTokenizerBase], bool]) -> str:
        """What to do about a record: a template that was found to write it, if there is one; or something else.

        Args:
            what: The sort of fault.
            otherwise: What to do about the record itself.
            works: Whether the tokenizer, with another template, writes the record.
        """
        # Trying all templates takes a second, and a data set with this fault has it in thousands of records.
        if what not in self.found:
            fitting = fitting_templates(self.tokenizer)
            self.found[what] = next((name for name in fitting if works(self._with(name))), None)
        name = self.found[what]
        other = f"Add --chat_template {name}, which writes this record whole" if name else ""
        ways = [other, otherwise, "leave such records out with --on_bad_record drop"]
        if not name:
            ways.append("give a template that writes it, as --chat_template FILE.jinja")
        text = "; or ".join(way for way in ways if way)
        return f"{text[0].upper()}{text[1:]}."

    def _with(self, name: str) -> PreTrainedTokenizerBase:
        # The tokenizer of the run must keep the template that it has.
        other = copy.copy(self.tokenizer)
        other.chat_template = text_of(name)
        return other


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
            check_record_arguments(arguments, tokenizer)
        self.own = arguments or {}
        self.arguments = arguments_of(tokenizer) | self.own
        # All added tokens, not only those marked as special: terminators of some models are not.
        self.special_texts = tuple(token for token in tokenizer.get_added_vocab() if token.strip())
        self.proposals = TemplateProposals(tokenizer)
        self.others: dict[str, Renderer] = {}
        self.prompted: dict[str, bool] = {}
        """Whether there is a generation prompt behind a message of a role, as far as it was asked (`TurnFinder`)."""

    @cached_property
    def asks(self) -> bool:
        """Whether the template has a generation prompt."""
        said = [{"role": "user", "content": "a"}]
        try:
            return self(said, add_generation_prompt=True) != self(said)
        except DataError:
            return True

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
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation.

        Raises:
            DataError: The template refuses it (for example a system turn, or roles that do not alternate).
        """
        return self._written(self.reads.named(messages), tools, add_generation_prompt)

    @cached_property
    def reads(self) -> Reads:
        """What the template reads of messages."""
        return Reads(self._written, str(self.tokenizer.chat_template))

    def _written(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, add_generation_prompt: bool = False
    ) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self.arguments,
            )
        except TEMPLATE_FAULTS as error:
            roles = " ".join(message["role"] for message in messages)
            raise without_token(error, self.tokenizer) or DataError(
                f"the chat template refuses this conversation ({roles}): {error}",
                fix="Change the record; or leave such records out with --on_bad_record drop; or give a template that "
                "takes it, as --chat_template FILE.jinja.",
                kind="refused by the chat template",
            ) from error
        return str(text)
