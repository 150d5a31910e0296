"""Conversations as text, by the chat template of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from jinja2.environment import Template
from jinja2.exceptions import TemplateError
from jinja2.runtime import LoopContext
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from hftune.data.records.messages import Message
from hftune.data.templates.choice import TemplateChoice, without_token
from hftune.data.templates.parametric import Part, guarded, outline
from hftune.errors import DataError

_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_REASONING = frozenset(("reasoning", "reasoning_content", "thinking"))
"""Keys of a turn that transformers gives each other's names, so that any template finds the one it reads."""


_LOOP = frozenset(("first", "last", "index", "index0", "length", "previtem", "nextitem"))
"""What templates ask of their loop."""


def render(
    messages: list[Message],
    tokenizer: PreTrainedTokenizerBase,
    tools: list[dict[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = False,
) -> str:
    """The text of a conversation by the tokenizer's chat template.

    Raises:
        DataError: The template refuses the conversation (for example a system turn, or roles that do not alternate).
    """
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except (TemplateError, TypeError) as error:
        # TypeError is what Jinja lets through when a template adds text to something that is not text.
        roles = " ".join(message["role"] for message in messages)
        raise without_token(error, tokenizer) or DataError(
            f"the chat template refuses this conversation ({roles}): {error}",
            fix="Change the record; or leave such records out with --on_bad_record drop; or give a template that takes "
            "it, as --chat_template FILE.jinja.",
            kind="refused by the chat template",
        ) from error
    return str(text)


class Renderer:
    """`render` for many conversations, in half the time: the same text, the same errors.

    `apply_chat_template` copies messages and tools several times, to convert values that come from JSON already; its
    only other work is to give a turn's reasoning several names. So a turn with reasoning takes that way, and all others
    go straight to the template, compiled once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.special = tokenizer.special_tokens_map
        self.special_texts = tuple(token for token in tokenizer.get_added_vocab() if token.strip())
        self.compiled: dict[bool, Any] = {}
        self.guarded: Any = None
        self.choice = TemplateChoice(tokenizer)

    def outline(self, roles: Iterable[str]) -> list[Part] | None:
        """What the template writes around the contents of messages with these roles; None where it looks at them."""
        if self.guarded is None:
            self.guarded = guarded(self._template(False), self.tokenizer.get_chat_template(tools=None))
        return outline(self.guarded, roles, self.special)

    def __call__(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """As `render`."""
        if not _REASONING.isdisjoint(chain.from_iterable(messages)):
            return render(messages, self.tokenizer, tools, add_generation_prompt=add_generation_prompt)
        try:
            return str(
                self._template(tools is not None).render(
                    messages=messages,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    **self.special,
                )
            )
        except (TemplateError, TypeError):
            # For its message.
            return render(messages, self.tokenizer, tools, add_generation_prompt=add_generation_prompt)

    def marks(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> list[tuple[int, int]] | None:
        """What the template itself marks as generated with {% generation %}: (start, end) in characters.

        None where it marks nothing.
        """
        chosen = self.tokenizer.get_chat_template(tools=tools)
        if not _MARKED.search(chosen):
            return None
        _, found = render_jinja_template(
            [messages], tools=tools, chat_template=chosen, return_assistant_tokens_mask=True, **self.special
        )
        return [(start, end) for start, end in found[0]]

    def _template(self, tools: bool) -> Any:
        """The compiled template; a tokenizer may have one of its own for tools."""
        if tools not in self.compiled:
            chosen = self.tokenizer.get_chat_template(tools=[{}] if tools else None)
            self.compiled[tools] = _quick(_compile_jinja_template(chosen), chosen)
        return self.compiled[tools]


def _quick(template: Template, source: str) -> Template:
    """The same template, which the sandbox does not ask anew at every message whether `loop.first` is safe.

    Args:
        template: Compiled by transformers.
        source: Its text.
    """
    environment = template.environment.overlay()
    checked = environment.getattr

    def quick(value: Any, attribute: str) -> Any:
        return (
            getattr(value, attribute)
            if type(value) is LoopContext and attribute in _LOOP
            else checked(value, attribute)
        )

    vars(environment)["getattr"] = quick
    return environment.from_string(source)
