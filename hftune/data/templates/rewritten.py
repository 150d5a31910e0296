"""Conversations of which the template writes earlier turns otherwise than inference has shown them.

Qwen3 drops the thoughts of turns before the last question; a model answers the second question without having seen
them, and has answered the first one with them. No single text holds both. So a conversation becomes several rows, each
of them the conversation up to a turn, in which those turns are trained whose beginning is, character for character, the
prompt that inference would be given there.
"""

from __future__ import annotations

from dataclasses import dataclass

from hftune.data.templates.asked_turn import asked_turn
from hftune.data.templates.opened_thoughts import Opening, opened_turn
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.templates.turns import TurnFinder
from hftune.errors import DataError

SPLIT, LAST, REFUSE, KEEP = "split", "last", "refuse", "keep"


@dataclass(frozen=True, slots=True)
class ExactRow:
    """The first `count` messages of a conversation as text, with the turns that are trained in it and their spans.

    With an `opening` the finder's text is without the `thought` of the only turn. A `text` stands for the finder's.
    """

    count: int
    finder: TurnFinder
    turns: list[int]
    spans: list[Span]
    opening: Opening | None = None
    thought: str = ""
    text: str | None = None

    def said(self) -> SpannedText:
        """The text that is trained, and its spans."""
        found = SpannedText(self.finder.text if self.text is None else self.text, self.spans)
        return self.opening.put(found, self.thought) if self.opening else found


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
    opened = opened_turn(part)
    if opened is None and (asked := asked_turn(part)):
        return ExactRow(len(part.messages), part, turns[-1:], [asked[1]], text=asked[0])
    if opened is None:
        return _row(part, {turns[-1]: part.exact_span(turns[-1])})  # raises, and says what to do
    written, span, opening, thought = opened
    return ExactRow(len(part.messages), written, turns[-1:], written.checked([span]), opening, thought)


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
