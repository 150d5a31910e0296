"""Equal and nearly equal records, and records of evaluation data that stand in others.

Texts are sets of hashed shingles (three neighbouring words); sets are compared by MinHash. Case, punctuation and white
space count nothing. A character of a script that writes no spaces (Chinese, Japanese, Thai) is a word of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

import numpy as np
import xxhash

from hftune.tools.checking.records import Record

BANDS, ROWS = 16, 4
"""A signature has so many bands of so many numbers; two records are compared where a whole band is equal."""

SIMILAR = 0.8
"""Share of equal numbers; it estimates the Jaccard similarity of the sets of shingles, give or take 0.05."""

WIDTH = 3
"""Words of a shingle."""

# Scripts without spaces between words; radicals to ideographs of planes 2 and 3, kana, South East Asia.
_OWN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
_OWN += "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"(?=[^\W_])[{_OWN}]|[^\W_{_OWN}]+")
# Fixed, so that a signature means the same on every machine.
_RANDOM = np.random.Generator(np.random.PCG64(20240229))
_FACTORS = _RANDOM.integers(0, 1 << 31, WIDTH, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
_TIMES = _RANDOM.integers(0, 1 << 31, BANDS * ROWS, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
_PLUS = _RANDOM.integers(0, 1 << 32, BANDS * ROWS, dtype=np.uint32)
_AT_ONCE = 4096
# Fewer shingles are alike by chance.
_FEWEST = 4
# Records with one band that a later one is compared with: the time grows with the records, also where all are alike.
_MOST_ALIKE = 4


def shingles_of(text: str) -> np.ndarray:
    """The different shingles of a text, uint32, ascending; one of fewer than `WIDTH` words has none."""
    # Full-width letters, as Chinese keyboards write them, are those of ASCII; halves of characters are question marks.
    text = unicodedata.normalize("NFKC", text.encode("utf-8", "replace").decode()).lower()
    words = np.array([xxhash.xxh32_intdigest(word.encode()) for word in _WORD.findall(text)], np.uint32)
    count = max(0, len(words) - WIDTH + 1)
    total = np.zeros(count, np.uint32)
    for place, factor in enumerate(_FACTORS):
        total += words[place : place + count] * factor
    total = (total ^ (total >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    return np.unique(total ^ (total >> np.uint32(13)))


def signature_of(shingles: np.ndarray) -> np.ndarray:
    """The MinHash signature of a set of shingles: (BANDS * ROWS,) uint32; all ones for none."""
    found = np.full(BANDS * ROWS, 0xFFFFFFFF, np.uint32)
    for start in range(0, len(shingles), _AT_ONCE):
        part = shingles[start : start + _AT_ONCE, None] * _TIMES + _PLUS
        np.minimum(found, part.min(axis=0), out=found)
    return found


def find_twins(exact: np.ndarray, sizes: np.ndarray, signatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The earliest record that each record equals, or else is found to be nearly equal to.

    Args:
        exact: (records,) uint64, a hash of all that is trained; 0 for records that are like no other.
        sizes: (records,) numbers of shingles.
        signatures: (records, BANDS * ROWS) uint32.

    Returns:
        Both (records,): the number of that record, int64, -1 without one; and their similarity.
    """
    _, first, inverse = np.unique(exact, return_index=True, return_inverse=True)
    twins = first[inverse].astype(np.int64)
    twins[(exact == 0) | (twins == np.arange(len(exact)))] = -1
    similarity = np.where(twins < 0, 0.0, 1.0).astype(np.float32)
    compared = np.flatnonzero((sizes >= _FEWEST) & (twins < 0))
    for band in range(BANDS):
        # Tuples: the garbage collector leaves those of numbers alone.
        alike: dict[bytes, tuple[int, ...]] = {}
        keys = np.ascontiguousarray(signatures[compared, band * ROWS : (band + 1) * ROWS]).view(f"V{4 * ROWS}")
        for record, key in zip(compared.tolist(), keys[:, 0].tolist(), strict=True):
            known = alike.get(key, ())
            for earlier in known:
                # They ascend: only an earlier twin than the one that is known may be the one that stays.
                if 0 <= twins[record] <= earlier:
                    break
                agreed = (signatures[record] == signatures[earlier]).mean()
                if agreed >= SIMILAR:
                    twins[record], similarity[record] = earlier, agreed
            if len(known) < _MOST_ALIKE:
                alike[key] = (*known, record)
    return twins, similarity


# --- evaluation data that stands in other texts ---

SKETCH = 64
"""Shingles that are kept of a text: 12 bytes each."""

CONTAINED = 0.6
"""One word in ten changed leaves at least 0.7 of three-word shingles, give or take 0.06 for the sketch."""

_SHORT, _CONTAINED_SHORT = 10, 0.8
"""Texts of fewer shingles are held by others by chance: more of them must be there."""

_FEWEST_HELD = 3
# What more texts of the evaluation data hold tells none of them: `What is the ...`.
_MOST_TEXTS = 50


class LeakIndex:
    """The evaluation data, as records are looked up in it; small enough for the memory, shared by all processes.

    Args:
        evaluation: (origin, record) of all its records.

    Attributes:
        records: How many there were.
    """

    def __init__(self, evaluation: Iterable[tuple[str, Record]]) -> None:
        kept, self._texts, self.records = [np.zeros(0, np.uint32)], [""], 0
        for origin, record in evaluation:
            self.records += 1
            texts = {f"the record of {origin}": record.compared}
            # A question with another answer is a leak as well; where nothing else is said, it is the whole.
            if record.asked.strip() and record.asked != record.compared:
                texts[f"the question of {origin}"] = record.asked
            for name, text in texts.items():
                if len(sketch := shingles_of(text)[:SKETCH]) >= _FEWEST_HELD:
                    self._texts.append(name)
                    kept.append(sketch)
        hashes, owners = np.concatenate(kept), np.repeat(np.arange(len(kept)), [len(one) for one in kept])
        order = np.argsort(hashes, kind="stable")
        _, counts = np.unique(hashes, return_counts=True)
        telling = np.repeat(counts <= _MOST_TEXTS, counts)
        self._hashes, self._owners = hashes[order][telling], owners[order][telling]
        self._sizes = np.bincount(self._owners, minlength=len(kept))

    def leak(self, shingles: np.ndarray) -> str:
        """The text that a record holds most of, in words; empty where that is not enough.

        Args:
            shingles: The record's, as `shingles_of` gives them.
        """
        first, last = (np.searchsorted(self._hashes, shingles, side=side) for side in ("left", "right"))
        found = [self._owners[start:end] for start, end in zip(first, last, strict=True) if end > start]
        if not found:
            return ""
        owners, held = np.unique(np.concatenate(found), return_counts=True)
        sizes = self._sizes[owners]
        shares = held / sizes
        enough = (sizes >= _FEWEST_HELD) & (shares >= np.where(sizes < _SHORT, _CONTAINED_SHORT, CONTAINED))
        best = int(np.argmax(np.where(enough, shares, 0)))
        return f"{self._texts[owners[best]]} stands in it ({shares[best]:.0%})" if enough[best] else ""
