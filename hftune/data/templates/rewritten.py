"""Conversations of which the template writes earlier turns otherwise than inference has shown them.

Qwen3 drops the thoughts of turns before the last question; a model answers the second question without having seen
them, and has answered the first one with them. No single text holds both. So a conversation becomes several rows, each
of them the conversation up to a turn, in which those turns are trained whose beginning is, character for character, the
prompt that inference would be given there.
"""

from __future__ import annotations

from dataclasses import dataclass

from hftune.data.templates.spans import Span
from hftune.data.templates.turns import TurnFinder
from hftune.errors import DataError

SPLIT, LAST, REFUSE, KEEP = "split", "last", "refuse", "keep"


@dataclass(frozen=True, slots=True)
class ExactRow:
    """The first `count` messages of a conversation as text, with the turns that are trained in it and their spans."""

    count: int
    finder: TurnFinder
    turns: list[int]
    spans: list[Span]


def _row(finder: TurnFinder, found: dict[int, Span]) -> ExactRow:
    turns = sorted(found)
    return ExactRow(len(finder.messages), finder, turns, finder.checked([found[turn] for turn in turns]))


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
    if rewritten == REFUSE:
        finder.exact_span(next(turn for turn in turns if turn not in found))
    if rewritten == LAST:
        turns = turns[-1:]
        found = {turn: found[turn] for turn in turns if turn in found}
    rows = [_row(finder, found)] if found else []
    left = [turn for turn in turns if turn not in found]
    while left:
        # The longest first: it may hold further turns exactly, as the calls before an answer.
        part = finder.upto(left[-1] + 1)
        inside = _exact(part, left)
        if left[-1] not in inside:
            part.exact_span(left[-1])  # raises, and says what to do
        rows.append(_row(part, inside))
        left = [turn for turn in left if turn not in inside]
    return rows[::-1]


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
