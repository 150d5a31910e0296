"""What is trained: of a conversation as text, and of its tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate, chain, zip_longest
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hftune.data.counts import require_fast
from hftune.data.messages import Message
from hftune.data.rendering import Renderer, opened_thoughts, require_chat_template
from hftune.data.turn_tokens import AnyEncoding, TurnTokenGuard
from hftune.data.turns import DROP_THOUGHTS, MASK, TRAIN, Span, SpannedText, TurnFinder
from hftune.errors import ArgumentError, DataError
from hftune.template_arguments import TemplateArguments


def token_ranges(encoding: AnyEncoding) -> np.ndarray:
    """The characters that each token stands for, (tokens, 2) int64: the first, and one behind the last.

    Tokens of white space get back the characters that `trim_offsets` took from them: byte-level tokenizers of the
    GPT-NeoX family report white space in front of the next word with a range of zero width at its end. Without its
    characters, a line break inside an answer would not be trained.
    """
    ranges = np.fromiter(chain.from_iterable(encoding.offsets), dtype=np.int64).reshape(-1, 2)
    starts, ends = ranges[:, 0], ranges[:, 1]
    reached = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]]) if len(ends) else ends
    ranges[:, 0] = np.where(starts == ends, np.minimum(reached, starts), starts)
    return ranges


def _in_span(ranges: np.ndarray, span: Span) -> np.ndarray:
    """Whether each token shares a character with a span, bool (tokens,); a range of zero width shares none."""
    return np.maximum(ranges[:, 0], span.start) < np.minimum(ranges[:, 1], span.end)


def tokens_of(encoding: AnyEncoding, spans: list[Span]) -> list[tuple[int, int]]:
    """The tokens of each span, (first, one past the last)."""
    ranges = token_ranges(encoding)
    inside = [np.flatnonzero(_in_span(ranges, span)) for span in spans]
    return [(int(one[0]), int(one[-1]) + 1) for one in inside]


def span_of_tokens(encoding: AnyEncoding, spans: list[Span]) -> np.ndarray:
    """For each token the index of the span with which it shares a character, -1 for none: int64 (tokens,).

    A token that reaches from one span into the next belongs to the later one.
    """
    # -1 also picks the 0 at the end of the list of weights; see `ChatEncoder`.
    ranges, owner = token_ranges(encoding), np.full(len(encoding), -1)
    for index, span in enumerate(spans):
        owner[_in_span(ranges, span)] = index
    return owner


SPLIT, LAST, REFUSE, KEEP = "split", "last", "refuse", "keep"


def _row(finder: TurnFinder, found: dict[int, Span]) -> SpannedText:
    return SpannedText(finder.text, finder.checked([found[turn] for turn in sorted(found)]))


def rows_of(finder: TurnFinder, *, last_turn_only: bool = False, rewritten: str = SPLIT) -> list[SpannedText]:
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
        trained, row = _row_upto(finder.upto(left[-1] + 1), left)
        rows.append(row)
        left = [turn for turn in left if turn not in trained]
    if rewritten == REFUSE and len(rows) > 1:
        finder.required_span(next(turn for turn in turns if turn not in found))  # raises, and says what to do
    return rows[::-1]


def _row_upto(part: TurnFinder, turns: list[int]) -> tuple[Iterable[int], SpannedText]:
    """Those turns that are exact in a conversation that ends with the last of them, and its row.

    Raises:
        DataError: The last one is not.
    """
    found = _exact(part, turns)
    if turns[-1] in found:
        return found, _row(part, found)
    said = opened_turn(part) or asked_turn(part)
    # Raises, and says what to do, where no way has found it.
    return turns[-1:], said or _row(part, {turns[-1]: part.required_span(turns[-1])})


def _exact(finder: TurnFinder, turns: list[int]) -> dict[int, Span]:
    """The spans of those turns that begin as inference would have them begin."""
    found = {turn: finder.exact_span(turn) for turn in turns}
    return {turn: span for turn, span in found.items() if span is not None}


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
        written = TurnFinder([*before, said], finder.renderer, finder.tools, empty_thoughts=TRAIN, beginnings=known)
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
        alone = TurnFinder([*question, turn], finder.renderer, finder.tools, empty_thoughts=finder.empty_thoughts)
        span = alone.required_span(1)
    except DataError:
        return None
    # What stands before it in both conversations is what the template asks with, such as a header.
    asks, body = prompt[len(without) :], alone.text[span.start :]
    if not asks or not finder.text.endswith(asks + body):
        return None
    return SpannedText(prompt + body, [Span(len(prompt), len(prompt) + span.end - span.start, span.weight)])


# --- plain conversations, by what their template writes around contents --------------------------------------------

Rows = Callable[[list[Message], None], list[SpannedText]]
"""The exact way, for a conversation without tools."""

_OPENING = {"assistant": "<[◁"}
"""A content that begins with one may continue what the template writes before it, as `<think>` does, or end a turn."""

Place = tuple[int, int]
"""The number of a content, or of the end behind the last one; how many characters into the text before it."""

Form = tuple[list[str], list[tuple[Place, Place, float]]]
"""What stands around the contents, one text more than there are contents; start, end and weight of each span."""


class Forms:
    """Finds the spans of plain conversations by the forms of one template.

    The exact way renders a conversation twice for each assistant turn: four fifths of the time of preprocessing where
    conversations have six. But plain conversations with the same roles differ in their contents only: one whose
    contents are words that occur nowhere else shows what stands around them, the form. A record is rendered once; if
    that text is, character for character, the form with the record's contents, its spans are the form's. Any other
    record goes the long way.

    Args:
        render: The template's.
        rows: The exact way, which finds each form.
    """

    def __init__(self, render: Renderer, rows: Rows) -> None:
        self.render, self.rows = render, rows
        # Bounded, for data whose every record has roles of its own.
        self.form = lru_cache(maxsize=1024)(self._find)

    def said(self, messages: list[Message]) -> SpannedText | None:
        """The text and its spans; None for what only the exact way can tell.

        Raises:
            DataError: The template refuses the conversation.
        """
        if not all(map(_is_plain, messages)):
            return None
        form = self.form(*[(message["role"], message.get("weight", 1.0)) for message in messages])
        if form is None:
            return None
        around, places = form
        parts = [*chain.from_iterable(zip_longest(around, (one["content"] for one in messages), fillvalue=""))]
        text = "".join(parts)
        if text != self.render(messages):
            return None
        starts = [0, *accumulate(map(len, parts))][::2]
        spans = [
            Span(starts[first] + into, starts[last] + upto, weight) for (first, into), (last, upto), weight in places
        ]
        return SpannedText(text, spans)

    def _find(self, *turns: tuple[str, float]) -> Form | None:
        """The form of conversations with these roles and weights; None unless they are one row that shows it."""
        # Digits between letters: no template changes their case, and no word is the beginning of another.
        words = [f"HFTUNE{number}PART" for number in range(len(turns))]
        said = zip(turns, words, strict=True)
        messages: list[Message] = [{"role": role, "weight": weight, "content": word} for (role, weight), word in said]
        try:
            rows = self.rows(messages, None)
        except DataError:
            return None
        around = _around(rows[-1].text, words)
        if len(rows) > 1 or around is None:
            return None
        bounds = [(_place(span.start, around, words), _place(span.end, around, words)) for span in rows[0].spans]
        spans = [
            (start, end, span.weight)
            for (start, end), span in zip(bounds, rows[0].spans, strict=True)
            if start is not None and end is not None
        ]
        return (around, spans) if len(spans) == len(bounds) else None


def _is_plain(message: Message) -> bool:
    """Whether a template can do nothing with a message but write its content, or be seen to do something else."""
    content, opening = message["content"], _OPENING.get(message["role"], "<")
    return message.keys() <= {"role", "content", "weight"} and content.strip() == content and content[:1] not in opening


def _around(text: str, words: list[str]) -> list[str] | None:
    """What stands before, between and behind the words; None unless each occurs once, in this order."""
    around = []
    for word in words:
        before, found, text = text.partition(word)
        if not found or word in text:
            return None
        around.append(before)
    return [*around, text]


def _place(position: int, around: list[str], words: list[str]) -> Place | None:
    """A position in the text of the words; None inside a word: how far in is the content's own business."""
    reached = 0
    for index, (text, word) in enumerate(zip_longest(around, words, fillvalue="")):
        if reached <= position <= reached + len(text):
            return index, position - reached
        reached += len(text) + len(word)
    return None


class SpanFinder:
    """Renders conversations and finds what is trained in them.

    Args:
        tokenizer: With the chat template to use.
        train_on_inputs: Everything is trained.
        last_turn_only: Only the last assistant turn is trained.
        borders_in_text: What becomes of turn tokens that contents spell, a mode of `TurnTokenGuard`.
        empty_thoughts: What becomes of thoughts that a template writes where an answer has none: `mask` (they belong to
            the prompt), `train`, or `drop` them from the text.
        rewritten: What becomes of conversations whose earlier turns a template rewrites, a mode of `rows_of`.

    Raises:
        ArgumentError: Everything and the last turn only at once.
        DataError: A tokenizer without character offsets, or without a chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train_on_inputs: bool = False,
        last_turn_only: bool = False,
        borders_in_text: str = "split",
        empty_thoughts: str = MASK,
        rewritten: str = KEEP,
    ) -> None:
        if train_on_inputs and last_turn_only:
            raise ArgumentError(
                "train on everything, or on the last turn only?",
                place="--train_on_inputs, --train_on_last_turn",
                fix="Give one of them.",
            )
        require_fast(tokenizer)
        require_chat_template(tokenizer)
        self.train_on_inputs, self.last_turn_only = train_on_inputs, last_turn_only
        self.empty_thoughts, self.rewritten = empty_thoughts, rewritten
        self.render = Renderer(tokenizer)
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)
        self.forms = Forms(self.render, self._exact_rows)

    def settings(self) -> dict[str, Any]:
        """For the fingerprint, by the names of the arguments."""
        return {
            "train_on_inputs": self.train_on_inputs,
            "last_turn_only": self.last_turn_only,
            "borders_in_text": self.guard.mode,
            "empty_thoughts": self.empty_thoughts,
            "rewritten_turns": self.rewritten,
        }

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
        other.forms = Forms(other.render, other._exact_rows)
        return other

    def _rows(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[SpannedText]:
        if self.train_on_inputs:
            text = self.render(messages, tools)
            return [SpannedText(text, [Span(0, len(text))])]
        known = self.forms.said(messages) if tools is None and self.empty_thoughts != DROP_THOUGHTS else None
        return self._exact_rows(messages, tools) if known is None else [known]

    def _exact_rows(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[SpannedText]:
        finder = TurnFinder(messages, self.render, tools, empty_thoughts=self.empty_thoughts)
        rows = rows_of(finder, last_turn_only=self.last_turn_only, rewritten=self.rewritten)
        if self.empty_thoughts == DROP_THOUGHTS:
            return [self._without_empty_thoughts(row) for row in rows]
        return rows

    def _without_empty_thoughts(self, said: SpannedText) -> SpannedText:
        """The text without the empty thoughts with which its spans begin.

        Raises:
            DataError: Their beginning is in the prompt that an answer is given, which cannot be changed.
        """
        parts, spans, reached, removed = [], [], 0, 0
        for span in said.spans:
            end = self.render.thoughts.end(said.text, span.start)
            if end > span.start and not self.render.thoughts.begin_at(said.text, span.start):
                raise DataError(
                    "the generation prompt of this chat template opens thoughts, so empty ones cannot be dropped",
                    fix="Give --empty_thoughts mask, or --chat_template_kwargs that switch thinking off.",
                    kind="empty thoughts in the prompt",
                )
            parts.append(said.text[reached : span.start])
            start, removed, reached = span.start - removed, removed + end - span.start, end
            spans.append(Span(start, span.end - removed, span.weight))
        return SpannedText("".join([*parts, said.text[reached:]]), spans) if removed else said
