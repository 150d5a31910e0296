"""Conversations of which the template writes earlier turns otherwise than inference has shown them.

Qwen3 drops the thoughts of turns before the last question; a model answers the second question without having seen
them, and has answered the first one with them. No single text holds both. So a conversation becomes several rows, each
of them the conversation up to a turn, in which those turns are trained whose beginning is, character for character, the
prompt that inference would be given there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.data.templates.empty_thoughts import MASK, opened_thoughts
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.templates.turns import TurnFinder
from hftune.errors import DataError

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
