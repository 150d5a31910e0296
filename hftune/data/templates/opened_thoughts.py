"""Answers to a generation prompt that opens thoughts, where the template writes none in a conversation.

DeepSeek-R1 is asked with `<think>\\n` and says its thought, `\\n</think>\\n\\n` and its answer; in a conversation its
template writes the answer alone. So the row is what the template writes, with the thought put before the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from hftune.data.templates.empty_thoughts import MASK, opened_thoughts
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.templates.turns import TurnFinder
from hftune.errors import DataError


@dataclass(frozen=True, slots=True)
class Opening:
    """What comes before an answer: `prompt`, with which the generation prompt ends, a thought, and `closing`."""

    prompt: str
    closing: str
    trains_empty: bool

    def put(self, said: SpannedText, thought: str = "") -> SpannedText:
        """The text with a thought before its answer, the only span; an empty one is trained if `trains_empty`."""
        if not said.spans:
            return said
        (span,) = said.spans
        text = f"{self.prompt}{thought}{self.closing}"
        given = self.prompt if thought or self.trains_empty else text
        moved = Span(span.start + len(given), span.end + len(text), span.weight)
        return SpannedText(said.text[: span.start] + text + said.text[span.start :], [moved])


def opened_turn(finder: TurnFinder) -> tuple[TurnFinder, Span, Opening, str] | None:
    """The last turn of a conversation as the template writes it without its thought, and what comes before it.

    Returns:
        The finder and the span of what is written, the opening, and the thought; None unless what is written before
        the turn, with the opening, is the generation prompt.
    """
    *before, turn = finder.messages
    prompt = finder.beginning(len(before), prompt=True) or ""
    opened = opened_thoughts(prompt)
    if opened is None or opened["open"][-1] not in ">]▷":
        return None
    mark, space = opened["open"], opened[0].removeprefix(opened["open"])
    closing = mark.replace("START", "END") if "START" in mark else f"{mark[0]}/{mark[1:]}"
    known = finder.renderer.tokenizer.get_added_vocab()
    if mark in known and closing not in known:  # a mark of another sort, whose end is not known
        return None
    own = turn.get("reasoning_content") or ""
    inside, closed, answer = ("", "", turn["content"]) if own else turn["content"].rpartition(closing)
    thought = (own or inside.strip().removeprefix(mark)).strip()
    said = {key: part for key, part in turn.items() if key != "reasoning_content"}
    said["content"] = answer.lstrip() if closed else answer
    try:
        written = TurnFinder([*before, said], finder.renderer, finder.tools, proposes=False, empty_thoughts="train")
        span = written.span(len(before))
    except DataError:
        return None
    if written.text[: span.start] + opened[0] != prompt:
        return None
    # Line breaks as the prompt has them: <think>\n...\n</think>\n\n, or <think>...</think>.
    opening = Opening(opened[0], space + closing + 2 * space, finder.empty_thoughts != MASK)
    return written, span, opening, thought
