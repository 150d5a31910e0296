"""What a span is: one definition, from the templates that spans are found in to the labels that are made of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text that is trained: the characters from `start` to before `end`.

    Its loss is multiplied by `weight`, which is above 0: what is not trained is no span.
    """

    start: int
    end: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SpannedText:
    """A text and its spans, sorted and disjoint."""

    text: str
    spans: list[Span]
