"""Texts as sets of hashed shingles (three neighbouring words), and as MinHash signatures; many texts at a time.

Case, punctuation and white space count nothing. A character of a script that writes no spaces (Chinese, Japanese,
Thai) is a word of its own. All of it is arithmetic of numpy over the code points of all texts together: Python's own
loops would take longer than everything else that is looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BANDS, ROWS = 32, 4
"""A signature has so many bands of so many numbers; two texts are compared where a whole band is equal."""

WIDTH = 3
"""Words of a shingle."""

_SPACES, _WORD, _OWN = 0, 1, 2
# Scripts without spaces between words; radicals to ideographs of planes 2 and 3, kana, South East Asia.
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3040, 0x30FF)),
    *((0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)
_TABLE = 0x40000
"""Code points of which tables know something; none beyond is a letter."""
# Letters of a word that count; longer words are told apart by these and by their number of letters.
_LETTERS = 64
# Of numbers that are worked on together: they stay in the processor's cache.
_CHARACTERS, _SHINGLES = 1 << 16, 256
# Fixed, so that a signature means the same on every machine.
_RANDOM = np.random.Generator(np.random.PCG64(20240229))


def _odd(count: int) -> np.ndarray:
    return _RANDOM.integers(0, 1 << 31, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)


_LETTER_FACTORS, _WORD_FACTORS, _TIMES = _odd(_LETTERS), _odd(WIDTH), _odd(BANDS * ROWS)
_PLUS = _RANDOM.integers(0, 1 << 32, BANDS * ROWS, dtype=np.uint32)


@dataclass(frozen=True)
class Shingles:
    """The words and shingles of some texts, one text after the other.

    Attributes:
        words: Hashes of all words, uint32.
        word_bounds: Text `t` has the words from `word_bounds[t]` to `word_bounds[t + 1]`.
        hashes: Of all shingles, uint32, in the order of the texts; a text may have one several times.
        bounds: As `word_bounds`, of the shingles.
    """

    words: np.ndarray
    word_bounds: np.ndarray
    hashes: np.ndarray
    bounds: np.ndarray

    def of(self, text: int) -> np.ndarray:
        """The different shingles of one text, ascending."""
        return np.unique(self.hashes[self.bounds[text] : self.bounds[text + 1]])


def shingles_of(texts: Sequence[str]) -> Shingles:
    """The words and shingles of each text; one of fewer than `WIDTH` words has no shingle."""
    words, counts = _words(texts)
    ends = np.cumsum(counts)
    last = max(0, len(words) - WIDTH + 1)
    total = np.zeros(last, np.uint32)
    for place, factor in enumerate(_WORD_FACTORS):
        total += words[place : place + last] * factor
    # Three words of two texts are no shingle.
    whole = np.ones(last, bool)
    for before in range(1, WIDTH):
        at = ends - before
        whole[at[(at >= 0) & (at < last)]] = False
    bounds = np.cumsum([0, *np.maximum(counts - WIDTH + 1, 0)])
    return Shingles(words, np.append(0, ends), _mixed(total[whole]), bounds)


def hash_of_word(word: str) -> int:
    """What `Shingles.words` has for a word."""
    return int(shingles_of([word]).words[0])


def signatures_of(shingles: Shingles) -> np.ndarray:
    """The MinHash signature of each text: (texts, BANDS * ROWS) uint32; all ones for a text without a shingle.

    The share of numbers in which two signatures agree estimates the Jaccard similarity of their sets of shingles.
    """
    found = np.full((len(shingles.bounds) - 1, BANDS * ROWS), 0xFFFFFFFF, np.uint32)
    buffer = np.empty((_SHINGLES, BANDS * ROWS), np.uint32)
    for text, (start, end) in enumerate(zip(shingles.bounds[:-1], shingles.bounds[1:], strict=True)):
        for first in range(start, end, _SHINGLES):
            part = shingles.hashes[first : min(end, first + _SHINGLES), None]
            permuted = np.multiply(part, _TIMES, out=buffer[: len(part)])
            permuted += _PLUS
            np.minimum(found[text], permuted.min(axis=0), out=found[text])
    return found


def _words(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of all words, and how many words each text has."""
    found: list[np.ndarray] = []
    counts = np.zeros(len(texts), np.int64)
    held: list[int] = []
    size = 0
    for number, text in enumerate(texts):
        held.append(number)
        size += len(text)
        if size >= _CHARACTERS or number == len(texts) - 1:
            words, counts[held] = _words_of([texts[one] for one in held])
            found.append(words)
            held, size = [], 0
    return np.concatenate(found) if found else np.zeros(0, np.uint32), counts


def _words_of(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds, folded = _tables()
    codes = folded[np.minimum(codes, _TABLE)]
    kinds = kinds[codes]
    ends = np.cumsum([0, *map(len, texts)])
    letters = kinds == _WORD
    begins = kinds == _OWN
    begins[1:] |= letters[1:] & ~letters[:-1]
    # The first letter of a text begins a word, whatever the text before ended with.
    at = ends[:-1][ends[:-1] < len(codes)]
    begins[at] |= letters[at]
    counts = np.diff(np.append(0, np.cumsum(begins))[ends])
    kept = np.flatnonzero(kinds)
    starts = np.flatnonzero(begins[kept])
    if not len(starts):
        return np.zeros(0, np.uint32), counts
    lengths = np.diff(np.append(starts, len(kept)))
    places = np.arange(len(kept)) - np.repeat(starts, lengths)
    hashed = _mixed(codes[kept]) * _LETTER_FACTORS[np.minimum(places, _LETTERS - 1)]
    return _mixed(np.add.reduceat(hashed, starts) + lengths.astype(np.uint32)), counts


def _mixed(values: np.ndarray) -> np.ndarray:
    """32 bits of which each depends on all of the value (the end of MurmurHash3)."""
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values ^= values >> np.uint32(13)
    values *= np.uint32(0xC2B2AE35)
    values ^= values >> np.uint32(16)
    return values


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Of each code point whether it is between words, a letter of one, or a word; and its small letter."""
    kinds = np.fromiter((chr(code).isalnum() for code in range(_TABLE + 1)), np.uint8, _TABLE + 1)
    for first, last in _UNSPACED:
        kinds[first : last + 1] *= _OWN
    folded = np.arange(_TABLE + 1, dtype=np.uint32)
    # Full-width letters and digits, as Chinese keyboards write them, are those of ASCII.
    folded[0xFF01:0xFF5F] -= 0xFEE0
    cased = [code for code in range(0x20000) if len(chr(code).lower()) == 1 and chr(code).lower() != chr(code)]
    for code in cased:
        folded[code] = folded[ord(chr(code).lower())]
    return kinds, folded
