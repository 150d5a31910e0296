"""Conversations as text, by the chat template of a tokenizer."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from hftune.data.records.messages import Message
from hftune.data.templates.proposals import TemplateProposals, without_token
from hftune.data.templates.reads import Reads
from hftune.data.templates.spans import Span
from hftune.errors import DataError
from hftune.template_arguments import (
    TEMPLATE_FAULTS,
    TemplateArguments,
    arguments_of,
    check_record_arguments,
    template_text,
)

# Sets of arguments of records that are remembered.
MOST_SETS = 64
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Renderer:
    """Writes conversations by the chat template of one tokenizer, and tells what it marks.

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

    def marks(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> list[Span] | None:
        """What the template itself marks as generated with {% generation %}; None where it marks nothing."""
        chosen = self.tokenizer.get_chat_template(tools=tools)
        if not _MARKED.search(chosen):
            return None
        # By transformers' function, because `apply_chat_template` gives marks by token only.
        _, found = render_jinja_template(
            [self.reads.named(messages)],
            tools=tools,
            chat_template=chosen,
            return_assistant_tokens_mask=True,
            **{**self.tokenizer.special_tokens_map, **self.arguments},
        )
        return [Span(start, end) for start, end in found[0]]
