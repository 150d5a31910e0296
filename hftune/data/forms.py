"""The spans of a conversation of plain text, by what its template writes around contents.

The way that defines spans, `mask.rows_of`, renders a conversation twice for each assistant turn: four fifths of the
time of preprocessing where conversations have six. But plain conversations with the same roles differ in their contents
only: one whose contents are words that occur nowhere else shows what stands around them, the *form*. A record is
rendered once; if that text is, character for character, the form with the record's contents, its spans are the form's.
Any other record goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, chain, zip_longest

from hftune.data.messages import Message
from hftune.data.rendering import Renderer
from hftune.data.turns import Span, SpannedText
from hftune.errors import DataError

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
