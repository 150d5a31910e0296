"""Records of evaluation data that stand in other texts, whole or nearly so.

Of each text of the evaluation data the `SKETCH` smallest hashes of shingles are kept. The share of them that a record
holds estimates how much of the text stands in the record, however long the record is (containment; a bottom-k sketch).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hftune.tools.checking.near import shingles_of
from hftune.tools.checking.records import Record

SKETCH = 64
"""Shingles that are kept of a text: 12 bytes each."""

CONTAINED = 0.6
"""One word in ten changed leaves at least 0.7 of three-word shingles, give or take 0.06 for the sketch."""

_SHORT, _CONTAINED_SHORT = 10, 0.8
"""Texts of fewer shingles are held by others by chance: more of them must be there."""

_FEWEST = 3
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
        kept, self._texts, self.records = [], list[str](), 0
        for origin, record in evaluation:
            self.records += 1
            texts = {f"the record of {origin}": record.compared}
            # A question with another answer is a leak as well; where nothing else is said, it is the whole.
            if record.asked.strip() and record.asked != record.compared:
                texts[f"the question of {origin}"] = record.asked
            for name, text in texts.items():
                if len(sketch := shingles_of(text)[:SKETCH]) >= _FEWEST:
                    self._texts.append(name)
                    kept.append(sketch)
        hashes = np.concatenate(kept) if kept else np.zeros(0, np.uint32)
        owners = np.repeat(np.arange(len(kept)), [len(one) for one in kept]) if kept else np.zeros(0, np.int64)
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
        hit = last > first
        if not hit.any():
            return ""
        found = [self._owners[start:end] for start, end in zip(first[hit], last[hit], strict=True)]
        owners, held = np.unique(np.concatenate(found), return_counts=True)
        sizes = self._sizes[owners]
        shares = held / sizes
        enough = (sizes >= _FEWEST) & (shares >= np.where(sizes < _SHORT, _CONTAINED_SHORT, CONTAINED))
        if not enough.any():
            return ""
        best = int(np.argmax(np.where(enough, shares, 0)))
        return f"{self._texts[owners[best]]} stands in it ({shares[best]:.0%})"
