"""Which tokens are trained: those that share a character with a span.

`in_span` is the definition: it looks at the character range of every token. `token_range` is the quick way, which asks
the tokenizer for the tokens of a span's first and last character alone; a property test holds the two equal.
"""

from __future__ import annotations

import numpy as np

from hftune.data.templates.guarded_text import AnyEncoding
from hftune.data.templates.spans import Span

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
