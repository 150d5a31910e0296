"""Conversations as text with the spans that are trained: by form where that is proven for the record, else exactly."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.records.messages import Message
from hftune.data.templates.empty_thoughts import DROP, MASK, thoughts_of
from hftune.data.templates.forms import Form, WordRenderer, find_forms
from hftune.data.templates.rendering import MOST_SETS, Renderer
from hftune.data.templates.rewritten import KEEP, rows_of
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.templates.turn_token_guard import TurnTokenGuard
from hftune.data.templates.turns import TurnFinder
from hftune.template_arguments import TemplateArguments

# Keys of a message of plain text. Any other one (a call, reasoning) changes what a template writes around contents.
_PLAIN = frozenset(("role", "content", "weight"))


class SpanFinder:
    """Renders conversations and finds what is trained in them; remembers the form of each sequence of roles.

    Args:
        tokenizer: With the chat template to use.
        train_everything: Everything is trained.
        last_turn_only: Only the last assistant turn is trained.
        by_marks: See `TurnFinder`.
        borders_in_text: What becomes of turn tokens that contents spell, a mode of `TurnTokenGuard`.
        empty_thoughts: What becomes of thoughts that a template writes where an answer has none: `mask` (they belong to
            the prompt), `train`, or `drop` them from the text.
        rewritten: What becomes of conversations whose earlier turns a template rewrites, a mode of `rows_of`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train_everything: bool = False,
        last_turn_only: bool = False,
        by_marks: bool = False,
        borders_in_text: str = "split",
        empty_thoughts: str = MASK,
        rewritten: str = KEEP,
    ) -> None:
        self.empty_thoughts, self.rewritten = empty_thoughts, rewritten
        self.by_marks = by_marks
        self.tokenizer, self.train_everything, self.last_turn_only = tokenizer, train_everything, last_turn_only
        self.render, self.render_words = Renderer(tokenizer), WordRenderer(tokenizer)
        self.forms: dict[tuple[str, ...], list[Form] | None] = {}
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)
        self.others: dict[Renderer, SpanFinder] = {}

    def __call__(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        arguments: TemplateArguments | None = None,
    ) -> SpannedText:
        """The text of a conversation and its spans: a span for each assistant turn with a weight other than 0.

        For a finder that keeps rewritten turns; others may find several rows.

        Args:
            arguments: The record's own, for the template.

        Raises:
            DataError: As `TurnFinder.spans`; or a turn token in a content, where they are refused.
        """
        (found,) = self.rows(messages, tools, arguments)
        return found

    def rows(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        arguments: TemplateArguments | None = None,
    ) -> list[SpannedText]:
        """The rows that a conversation is trained as, the shortest first.

        Raises:
            DataError: As `rows_of`; or a turn token in a content, where they are refused.
        """
        finder = self.given(arguments) if arguments else self
        return finder.guard.guarded_rows(finder._rows, finder.render.reads.said(messages, tools), tools)

    def given(self, arguments: TemplateArguments) -> SpanFinder:
        """This finder with other arguments for the template."""
        render = self.render.given(arguments)
        # Forms are what a template writes with these arguments; the turn tokens are the same with all of them.
        if render not in self.others:
            # As many as the renderer remembers: sets of arguments may be as many as records, as where they hold dates.
            if len(self.others) >= MOST_SETS:
                self.others.clear()
            self.others[render] = other = copy.copy(self)
            other.render, other.render_words, other.forms = render, WordRenderer(self.tokenizer, arguments), {}
        return self.others[render]

    def _rows(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[SpannedText]:
        if self.train_everything:
            text = self.render(messages, tools)
            return [SpannedText(text, [Span(0, len(text))])]
        found = self._found(messages, tools)
        return [thoughts_of(self.render).dropped(one) for one in found] if self.empty_thoughts == DROP else found

    def _found(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[SpannedText]:
        # Tools are written into the text in other places than contents, so there is no form with them.
        if tools is None and all(_PLAIN.issuperset(message) for message in messages):
            found = self._by_form(messages)
            if found is not None:
                return found
        finder = TurnFinder(messages, self.render, tools, by_marks=self.by_marks, empty_thoughts=self.empty_thoughts)
        rows = rows_of(finder, last_turn_only=self.last_turn_only, rewritten=self.rewritten)
        return [row.said() for row in rows]

    def _by_form(self, messages: list[Message]) -> list[SpannedText] | None:
        """The same by the forms of these roles; None where the template writes this record in another way."""
        roles = tuple([message["role"] for message in messages])
        # Remembered by roles: data have a handful of such sequences, up to the number of turns.
        if roles not in self.forms:
            self.forms[roles] = find_forms(
                roles,
                self.render_words,
                last_turn_only=self.last_turn_only,
                by_marks=self.by_marks,
                empty_thoughts=self.empty_thoughts,
                rewritten=self.rewritten,
            )
        forms = self.forms[roles]
        # Which rows there are depends on which turns are trained.
        if forms is None or (len(forms) > 1 and any("weight" in message for message in messages)):
            return None
        rows = []
        for form in forms:
            said = messages if len(form.clean) == len(messages) else messages[: len(form.clean)]
            found = form.fill(said)
            # The form is a guess until the template itself has written the same text for this very record.
            if found is None or self.render(said) != found.text:
                return None
            rows.append(form.opening.put(found) if form.opening else found)
        return rows
