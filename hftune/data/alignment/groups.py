"""Where two tokenisations of the same words have their borders together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

Region = tuple[int, int, int]
"""A part that two texts have in common: where it begins in each, and its length, all in bytes."""

_WORDS = re.compile(rb"\w+|\W", re.DOTALL)

_LEAST = 8
"""Bytes that a common part between the ends must have: a comma in two texts says nothing of what surrounds it."""

_MOST = 1 << 14
"""Bytes between the ends that are compared at most: the time grows with their square."""


class Group(NamedTuple):
    """The smallest span at whose ends both tokenisations have a border: tokens from `first` to before `last`."""

    first: int
    last: int
    other_first: int
    other_last: int


def aligned_groups(tokens: Sequence[bytes], others: Sequence[bytes]) -> list[Group]:
    """The groups of two tokenisations, in order.

    Where both write the same bytes, groups hold every token of both. Where they do not (templates write calls in
    different ways, or one tokenizer normalises), only what they have in common is grouped. A space that one side alone
    writes before everything counts as nothing.

    Args:
        tokens: What each token writes.
        others: The same of the other tokenisation.
    """
    tokens, others = _without_opening_space(tokens, others)
    borders, other_borders = _borders(tokens), _borders(others)
    groups = []
    for start, other_start, length in common_regions(b"".join(tokens), b"".join(others)):
        own = _within(borders, start, length)
        common = np.intersect1d(own, _within(other_borders, other_start, length))
        places = _places(borders, start + common)
        other_places = _places(other_borders, other_start + common)
        ends = zip(places, places[1:], other_places, other_places[1:], strict=False)
        groups += [Group(first, last, other, other_last) for first, last, other, other_last in ends]
    return groups


def common_regions(one: bytes, other: bytes) -> list[Region]:
    """Parts that two texts have in common, in order: how they begin, how they end, and longer ones between."""
    if one == other:
        return [(0, 0, len(one))] if one else []
    start = _alike(one, other)
    end = _alike(one[start:][::-1], other[start:][::-1])
    between = _between(one[start : len(one) - end], other[start : len(other) - end])
    found = [(0, 0, start), *((start + at, start + there, length) for at, there, length in between)]
    return [region for region in [*found, (len(one) - end, len(other) - end, end)] if region[2]]


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes are the same at the beginning."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(np.frombuffer(one, np.uint8, length) != np.frombuffer(other, np.uint8, length))
    return int(differ[0]) if len(differ) else length


def _between(one: bytes, other: bytes) -> Iterator[Region]:
    """Runs of the same words."""
    if not one or not other or max(len(one), len(other)) > _MOST:
        return
    words, other_words = _WORDS.findall(one), _WORDS.findall(other)
    starts, other_starts = (np.cumsum([0, *map(len, each)]) for each in (words, other_words))
    for block in SequenceMatcher(None, words, other_words, autojunk=False).get_matching_blocks():
        start, end = int(starts[block.a]), int(starts[block.a + block.size])
        if end - start >= _LEAST:
            yield start, int(other_starts[block.b]), end - start


def _without_opening_space(tokens: Sequence[bytes], others: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    if tokens and others:
        spaced, other_spaced = tokens[0][:1] == b" ", others[0][:1] == b" "
        if spaced and not other_spaced:
            tokens = [tokens[0][1:], *tokens[1:]]
        elif other_spaced and not spaced:
            others = [others[0][1:], *others[1:]]
    return tokens, others


def _borders(tokens: Sequence[bytes]) -> np.ndarray:
    """Where each token begins, and the end: bytes, int64 (tokens + 1,)."""
    return np.cumsum([0, *map(len, tokens)])


def _within(borders: np.ndarray, start: int, length: int) -> np.ndarray:
    return borders[(borders >= start) & (borders <= start + length)] - start


def _places(borders: np.ndarray, at: np.ndarray) -> list[int]:
    """The token that begins at each of some borders; a token without bytes belongs to what follows it, or ends all."""
    places = np.searchsorted(borders, at)
    places[at == borders[-1]] = len(borders) - 1
    found: list[int] = places.tolist()
    return found
