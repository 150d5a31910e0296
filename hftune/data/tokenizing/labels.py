"""Which tokens are trained: those that share a character with a span."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tokenizers import Encoding

from hftune.constants import IGNORE_INDEX
from hftune.data.templates.spans import Span

Ids = list[int]


def widened(offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Give tokens of white space back the characters that `trim_offsets` took from them.

    Byte-level tokenizers of the GPT-NeoX family report white space in front of the next word with a range of zero width
    at its end. Without its characters, a line break inside an answer would not be trained.
    """
    widened, reached = [], 0
    for start, end in offsets:
        widened.append((min(reached, start), end) if start == end else (start, end))
        reached = max(reached, end)
    return widened


def overlaps(offset: tuple[int, int], spans: Iterable[tuple[int, int]]) -> bool:
    """Whether a token's character range shares a character with a span; a range of zero width shares none."""
    return any(max(offset[0], start) < min(offset[1], end) for start, end in spans)


def mask_labels(ids: Ids, offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> Ids:
    """Labels: the token's id where it overlaps a span, IGNORE_INDEX elsewhere. Spans are sorted and disjoint."""
    labels, first = [], 0
    for token, offset in zip(ids, offsets, strict=True):
        while first < len(spans) and spans[first][1] <= offset[0]:
            first += 1
        # A token may reach over the gap between two spans, never over more.
        labels.append(token if overlaps(offset, spans[first : first + 2]) else IGNORE_INDEX)
    return labels


def token_span(encoding: Encoding, start: int, end: int, covered: int) -> tuple[int, int] | None:
    """The tokens (first, one past the last) that share a character with `start` to `end`.

    Returns:
        An empty range beyond the covered characters; None where the tokenizer leaves white space at a bound out of its
        character ranges, so that every token must be looked at (`labels_by_ranges`).
    """
    if start >= covered:
        return len(encoding), len(encoding)
    first, last = encoding.char_to_token(start), encoding.char_to_token(min(end, covered) - 1)
    if first is None or last is None:
        return None
    # Several tokens may stand for one character, such as an emoji's bytes.
    while last + 1 < len(encoding):
        following = encoding.token_to_chars(last + 1)
        if following is None or following[0] >= end or following[0] == following[1]:
            break
        last += 1
    return first, last + 1


def labels_by_ranges(encoding: Encoding, spans: list[tuple[int, int]]) -> Ids:
    """Labels by the character range of every token: the way that always works."""
    return mask_labels(encoding.ids, widened(encoding.offsets), spans)


def mask(
    ids: np.ndarray, encoding: Encoding, covered: int, spans: list[Span], weights: list[float] | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Labels (length,) int32: the id where a token shares a character with a span, IGNORE_INDEX elsewhere.

    Args:
        ids: The kept tokens, the first of `encoding`.
        covered: Characters of the text that `encoding` stands for.
        weights: One a span; None for no weights.

    Returns:
        Labels, and the weight of each token (length,) float32, 0 where it is not trained; None without weights.
    """
    labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int32)
    scale = None if weights is None else np.zeros(len(ids), dtype=np.float32)
    for number, (start, end) in enumerate(spans):
        found = token_span(encoding, start, end, covered)
        if found is None:
            inside = np.array(labels_by_ranges(encoding, [(start, end)])[: len(ids)], dtype=np.int32) != IGNORE_INDEX
        else:
            inside = slice(*found)  # type: ignore[assignment]
        labels[inside] = ids[inside]
        if scale is not None and weights is not None:
            scale[inside] = weights[number]
    return labels, scale
