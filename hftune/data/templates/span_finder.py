"""Conversations as text with the spans that are trained."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.records.messages import Message
from hftune.data.templates.empty_thoughts import DROP, MASK, thoughts_of
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.rewritten import KEEP, rows_of
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.templates.turn_token_guard import TurnTokenGuard
from hftune.data.templates.turns import TurnFinder
from hftune.template_arguments import TemplateArguments


class SpanFinder:
    """Renders conversations and finds what is trained in them.

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
        self.render = Renderer(tokenizer)
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)

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
        other = copy.copy(self)  # the turn tokens are the same with all of them
        other.render = self.render.given(arguments)
        return other

    def _rows(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[SpannedText]:
        if self.train_everything:
            text = self.render(messages, tools)
            return [SpannedText(text, [Span(0, len(text))])]
        finder = TurnFinder(messages, self.render, tools, by_marks=self.by_marks, empty_thoughts=self.empty_thoughts)
        rows = rows_of(finder, last_turn_only=self.last_turn_only, rewritten=self.rewritten)
        if self.empty_thoughts == DROP:
            return [thoughts_of(self.render).dropped(row.said) for row in rows]
        return [row.said for row in rows]
