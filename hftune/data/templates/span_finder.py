"""Conversations as text with the spans that are trained: by form where that is proven for the record, else exactly."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.records.messages import Message
from hftune.data.templates.forms import Form, WordRenderer, find_form
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.templates.turn_token_guard import TurnTokenGuard
from hftune.data.templates.turns import TurnFinder

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
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train_everything: bool = False,
        last_turn_only: bool = False,
        by_marks: bool = False,
        borders_in_text: str = "split",
    ) -> None:
        self.by_marks = by_marks
        self.tokenizer, self.train_everything, self.last_turn_only = tokenizer, train_everything, last_turn_only
        self.render, self.render_words = Renderer(tokenizer), WordRenderer(tokenizer)
        self.forms: dict[tuple[str, ...], Form | None] = {}
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)

    def __call__(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> SpannedText:
        """The text of a conversation and its spans: a span for each assistant turn with a weight other than 0.

        Raises:
            DataError: As `TurnFinder.spans`; or a turn token in a content, where they are refused.
        """
        return self.guard.guarded(self._spanned, self.render.reads.said(messages, tools), tools)

    def _spanned(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> SpannedText:
        if self.train_everything:
            text = self.render(messages, tools)
            return SpannedText(text, [Span(0, len(text))])
        # Tools are written into the text in other places than contents, so there is no form with them.
        if tools is None and all(_PLAIN.issuperset(message) for message in messages):
            found = self._by_form(messages)
            if found is not None:
                return found
        finder = TurnFinder(messages, self.render, tools, by_marks=self.by_marks)
        return SpannedText(finder.text, finder.spans(last_turn_only=self.last_turn_only))

    def _by_form(self, messages: list[Message]) -> SpannedText | None:
        """The same by the form of these roles; None where the template writes this record in another way."""
        roles = tuple([message["role"] for message in messages])
        # Remembered by roles: data have a handful of such sequences, up to the number of turns.
        if roles not in self.forms:
            self.forms[roles] = find_form(
                roles, self.render_words, last_turn_only=self.last_turn_only, by_marks=self.by_marks
            )
        form = self.forms[roles]
        found = None if form is None else form.fill(messages)
        # The form is a guess until the template itself has written the same text for this very record.
        return found if found is not None and self.render(messages) == found.text else None
