"""What is trained: of a conversation as text, and of its tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hftune.data.messages import Message
from hftune.data.rendering import Renderer
from hftune.data.turn_tokens import AnyEncoding, TurnTokenGuard
from hftune.data.turns import DROP_THOUGHTS, MASK, Span, SpannedText, TurnFinder, opened_thoughts, thoughts_of
from hftune.errors import DataError
from hftune.template_arguments import TemplateArguments

Offsets = list[tuple[int, int]]
"""The character range of each token, (start, end)."""


def in_span(offsets: Offsets, span: Span) -> np.ndarray:
    """Whether each token shares a character with a span, bool (tokens,); a range of zero width shares none."""
    # Every token is looked at: slow, and the definition that the quick way is held against.
    ranges = np.array(widened(offsets), dtype=np.int64).reshape(-1, 2)
    return np.maximum(ranges[:, 0], span.start) < np.minimum(ranges[:, 1], span.end)


def widened(offsets: Offsets) -> Offsets:
    """Give tokens of white space back the characters that `trim_offsets` took from them.

    Byte-level tokenizers of the GPT-NeoX family report white space in front of the next word with a range of zero width
    at its end. Without its characters, a line break inside an answer would not be trained.
    """
    widened, reached = [], 0
    for start, end in offsets:
        widened.append((min(reached, start), end) if start == end else (start, end))
        reached = max(reached, end)
    return widened


def token_range(encoding: AnyEncoding, span: Span, covered: int) -> tuple[int, int] | None:
    """The tokens (first, one past the last) that share a character with a span.

    Args:
        covered: Characters of the text that the encoding stands for.

    Returns:
        An empty range beyond the covered characters; None where the tokenizer leaves white space at a bound out of its
        character ranges, so that every token must be looked at.
    """
    if span.start >= covered:
        return len(encoding), len(encoding)
    first, last = encoding.char_to_token(span.start), encoding.char_to_token(min(span.end, covered) - 1)
    # White space that a tokenizer with trim_offsets leaves out of its ranges.
    if first is None or last is None:
        return None
    # Several tokens may stand for one character, such as an emoji's bytes.
    end = last + 1
    while (following := encoding.token_to_chars(end)) and following[0] < min(span.end, following[1]):
        end += 1
    return first, end


def tokens_of(encoding: AnyEncoding, span: Span, covered: int) -> tuple[int, int]:
    """The tokens of a span, (first, one past the last), by the quick way where it knows."""
    found = token_range(encoding, span, covered)
    if found is None:
        inside = np.flatnonzero(in_span(encoding.offsets, span))
        found = int(inside[0]), int(inside[-1]) + 1
    return found


def span_of_tokens(encoding: AnyEncoding, spans: list[Span], covered: int) -> np.ndarray:
    """For each token the index of the span that it belongs to, -1 for none: int64 (tokens,).

    A token that reaches from one span into the next belongs to the later one.
    """
    # -1 also picks the 0 at the end of the list of weights; see `ChatEncoder.encode`.
    owner = np.full(len(encoding), -1)
    for index, span in enumerate(spans):
        found = token_range(encoding, span, covered)
        owner[in_span(encoding.offsets, span) if found is None else slice(*found)] = index
    return owner


SPLIT, LAST, REFUSE, KEEP = "split", "last", "refuse", "keep"


@dataclass(frozen=True, slots=True)
class ExactRow:
    """The beginning of a conversation as text, and the turns that are trained in it."""

    turns: list[int]
    said: SpannedText


def _row(finder: TurnFinder, found: dict[int, Span]) -> ExactRow:
    turns = sorted(found)
    return ExactRow(turns, SpannedText(finder.text, finder.checked([found[turn] for turn in turns])))


def rows_of(finder: TurnFinder, *, last_turn_only: bool = False, rewritten: str = SPLIT) -> list[ExactRow]:
    """The rows that a conversation is trained as, the shortest first: one, unless the template rewrites turns.

    Args:
        last_turn_only: Only the last turn is trained.
        rewritten: `--rewritten_turns`.

    Raises:
        DataError: A turn is lost, or begins in another way than inference would have it begin, in every row.
    """
    turns = finder.trained_turns(last_turn_only=last_turn_only)
    if rewritten == KEEP:
        return [_row(finder, {turn: finder.span(turn) for turn in turns})]
    found = _exact(finder, turns)
    if len(found) == len(turns):
        return [_row(finder, found)]
    if rewritten == LAST:
        turns = turns[-1:]
        found = {turn: found[turn] for turn in turns if turn in found}
    rows = [_row(finder, found)] if found else []
    left = [turn for turn in turns if turn not in found]
    while left:
        # The longest first: it may hold further turns exactly, as the calls before an answer.
        rows.append(_row_upto(finder.upto(left[-1] + 1), left))
        left = [turn for turn in left if turn not in rows[-1].turns]
    if rewritten == REFUSE and len(rows) > 1:
        finder.exact_span(next(turn for turn in turns if turn not in found))  # raises, and says what to do
    return rows[::-1]


def _row_upto(part: TurnFinder, turns: list[int]) -> ExactRow:
    """The row of a conversation that ends with the last of these turns, with those that are exact in it.

    Raises:
        DataError: The last one is not.
    """
    found = _exact(part, turns)
    if turns[-1] in found:
        return _row(part, found)
    said = opened_turn(part) or asked_turn(part)
    if said is not None:
        return ExactRow(turns[-1:], said)
    return _row(part, {turns[-1]: part.exact_span(turns[-1])})  # raises, and says what to do


def _exact(finder: TurnFinder, turns: list[int]) -> dict[int, Span]:
    """The spans of those turns that begin as inference would have them begin."""
    found = {}
    for turn in turns:
        try:
            # Looking for a template that would do takes a second, and most faults here are none.
            found[turn] = finder.exact_span(turn, proposes=False)
        except DataError:
            continue
    return found


def opened_turn(finder: TurnFinder) -> SpannedText | None:
    """A conversation that ends with an answer to a prompt that opens thoughts, where the template writes none.

    DeepSeek-R1 is asked with `<think>` and says its thought, `</think>` and its answer; in a conversation its template
    writes the answer alone. So the row is what the template writes, with the thought put before the answer.

    Returns:
        None unless what is written before the turn, with what the prompt opens, is the generation prompt.
    """
    *before, turn = finder.messages
    prompt = finder.beginning(len(before), prompt=True) or ""
    opened = opened_thoughts(prompt)
    if opened is None or opened["open"][-1] not in ">]▷":
        return None
    mark, space = opened["open"], opened[0].removeprefix(opened["open"])
    closing = mark.replace("START", "END") if "START" in mark else f"{mark[0]}/{mark[1:]}"
    marks = finder.renderer.tokenizer.get_added_vocab()
    if mark in marks and closing not in marks:  # a mark of another sort, whose end is not known
        return None
    own = turn.get("reasoning_content") or ""
    inside, closed, answer = ("", "", turn["content"]) if own else turn["content"].rpartition(closing)
    thought = (own or inside.strip().removeprefix(mark)).strip()
    said = {key: part for key, part in turn.items() if key != "reasoning_content"}
    said["content"] = answer.lstrip() if closed else answer
    try:
        known = {key: text for key, text in finder.beginnings.items() if key[0] < len(finder.messages)}
        options: dict[str, Any] = {"proposes": False, "empty_thoughts": "train", "beginnings": known}
        written = TurnFinder([*before, said], finder.renderer, finder.tools, **options)
        span = written.span(len(before))
    except DataError:
        return None
    if written.text[: span.start] + opened[0] != prompt:
        return None
    written.checked([span])
    # Line breaks as the prompt has them: <think>\n...\n</think>\n\n, or <think>...</think>.
    text = opened[0] + thought + space + closing + 2 * space
    # An empty thought belongs to the prompt, unless it is to be trained.
    given = opened[0] if thought or finder.empty_thoughts != MASK else text
    moved = Span(span.start + len(given), span.end + len(text), span.weight)
    return SpannedText(written.text[: span.start] + text + written.text[span.start :], [moved])


def asked_turn(finder: TurnFinder) -> SpannedText | None:
    """A turn behind the prompt that inference gives, where the template writes no conversation that holds both.

    gpt-oss's template shows the thoughts before a call until the answer is written, and drops them then. So the row is
    the prompt, and behind it what the template writes of the turn in a conversation of a question and this turn alone.

    Returns:
        None unless the conversation as the template writes it ends with the very same turn, behind the end of a
        generation prompt.
    """
    *before, turn = finder.messages
    prompt, without = finder.beginning(len(before), prompt=True), finder.beginning(len(before))
    question = [message for message in before if message["role"] == "user"][-1:]
    if not question or not prompt or not without or not prompt.startswith(without):
        return None
    try:
        alone = TurnFinder([*question, turn], finder.renderer, finder.tools, proposes=False)
        alone.empty_thoughts = finder.empty_thoughts
        span = alone.exact_span(1)
    except DataError:
        return None
    # What stands before it in both conversations is what the template asks with, such as a header.
    asks, body = prompt[len(without) :], alone.text[span.start :]
    if not asks or not finder.text.endswith(asks + body):
        return None
    return SpannedText(prompt + body, [Span(len(prompt), len(prompt) + span.end - span.start, span.weight)])


class SpanFinder:
    """Renders conversations and finds what is trained in them.

    Args:
        tokenizer: With the chat template to use.
        train_everything: Everything is trained.
        last_turn_only: Only the last assistant turn is trained.
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
        borders_in_text: str = "split",
        empty_thoughts: str = MASK,
        rewritten: str = KEEP,
    ) -> None:
        self.empty_thoughts, self.rewritten = empty_thoughts, rewritten
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
        finder = TurnFinder(messages, self.render, tools, empty_thoughts=self.empty_thoughts)
        rows = rows_of(finder, last_turn_only=self.last_turn_only, rewritten=self.rewritten)
        if self.empty_thoughts == DROP_THOUGHTS:
            return [thoughts_of(self.render).dropped(row.said) for row in rows]
        return [row.said for row in rows]
