"""Records of evaluation data that stand in other texts, whole or nearly so.

Of each text of the evaluation data the `SKETCH` smallest hashes of shingles are kept. The share of them that a record
holds estimates how much of the text stands in the record, however long the record is (containment; a bottom-k sketch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hftune.tools.checking.records import Record
from hftune.tools.checking.shingles import Shingles, shingles_of

SKETCH = 64
"""Shingles that are kept of a text: 12 bytes each."""

CONTAINED = 0.6
"""One word in ten changed leaves at least 0.7 of three-word shingles, give or take 0.06 for the sketch."""

_SHORT, _CONTAINED_SHORT = 10, 0.8
"""Texts of fewer shingles are held by others by chance: more of them must be there."""

_FEWEST = 3
# What more texts of the evaluation data hold tells none of them: `What is the ...`.
_MOST_TEXTS = 50
_BITS = 22


@dataclass(frozen=True)
class Leak:
    """That a record holds a text of the evaluation data.

    Attributes:
        record: Its number among those asked about.
        origin: `file:line` of the record of the evaluation data.
        what: What of it is held: "the record" or "the question".
        share: How much of it.
    """

    record: int
    origin: str
    what: str
    share: float

    @property
    def reason(self) -> str:
        """In words."""
        return f"{self.what} of {self.origin} stands in it ({self.share:.0%})"


class Sketches:
    """The sketches of the evaluation data, collected chunk by chunk."""

    def __init__(self) -> None:
        self.origins: list[tuple[str, bool]] = []
        self._kept: list[np.ndarray] = []

    def add(self, origins: Sequence[str], records: Sequence[Record]) -> None:
        """Add records: each as a whole, and what is asked in it."""
        texts = [(origin, False, record.compared) for origin, record in zip(origins, records, strict=True)]
        # A question with another answer is a leak as well; where nothing else is said, it is the whole.
        texts += [
            (origin, True, record.asked)
            for origin, record in zip(origins, records, strict=True)
            if record.asked.strip() and record.asked != record.compared
        ]
        found = shingles_of([text for _, _, text in texts])
        for number, (origin, is_question, _) in enumerate(texts):
            kept = found.of(number)[:SKETCH]
            if len(kept) >= _FEWEST:
                self.origins.append((origin, is_question))
                self._kept.append(kept)

    def index(self) -> LeakIndex:
        """What records are looked up in."""
        return LeakIndex(self.origins, self._kept)


class LeakIndex:
    """Where each kept shingle belongs; small enough for the memory, shared by all processes."""

    def __init__(self, origins: list[tuple[str, bool]], kept: list[np.ndarray]) -> None:
        self._origins = origins
        hashes = np.concatenate(kept) if kept else np.zeros(0, np.uint32)
        owners = np.repeat(np.arange(len(kept), dtype=np.uint32), [len(one) for one in kept])
        order = np.argsort(hashes, kind="stable")
        hashes, owners = hashes[order], owners[order]
        counts = np.diff(np.append(np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])), len(hashes)))
        telling = np.repeat(counts <= _MOST_TEXTS, counts) if len(hashes) else np.zeros(0, bool)
        hashes, self._owners = hashes[telling], owners[telling]
        self._sizes = np.bincount(self._owners, minlength=len(kept))
        self._keys, self._starts = np.unique(hashes, return_index=True)
        self._starts = np.append(self._starts, len(hashes))
        # Most shingles of most records are none of these: a bit each, before they are searched for.
        self._seen = np.zeros(1 << _BITS, bool)
        self._seen[self._keys & ((1 << _BITS) - 1)] = True

    def leaks(self, found: Shingles) -> Iterator[Leak]:
        """For each record the text that it holds most of, if that is enough."""
        if not len(self._keys):
            return
        at = np.flatnonzero(self._seen[found.hashes & np.uint32((1 << _BITS) - 1)])
        where = np.minimum(np.searchsorted(self._keys, found.hashes[at]), len(self._keys) - 1)
        hit = self._keys[where] == found.hashes[at]
        records = np.searchsorted(found.bounds, at[hit], side="right") - 1
        # A record may hold a shingle several times.
        pairs = np.unique(records.astype(np.uint64) << np.uint64(32) | where[hit].astype(np.uint64))
        records, where = (pairs >> np.uint64(32)).astype(np.int64), (pairs & np.uint64(0xFFFFFFFF)).astype(np.int64)
        counts = self._starts[where + 1] - self._starts[where]
        owners = self._owners[_ranges(self._starts[where], counts)].astype(np.uint64)
        both, held = np.unique(
            np.repeat(records, counts).astype(np.uint64) << np.uint64(32) | owners, return_counts=True
        )
        records, owners = (both >> np.uint64(32)).astype(np.int64), (both & np.uint64(0xFFFFFFFF)).astype(np.int64)
        sizes = self._sizes[owners]
        shares = held / sizes
        enough = (sizes >= _FEWEST) & (shares >= np.where(sizes < _SHORT, _CONTAINED_SHORT, CONTAINED))
        best: dict[int, tuple[float, int]] = {}
        for record, owner, share in zip(records[enough], owners[enough], shares[enough], strict=True):
            best[int(record)] = max(best.get(int(record), (0.0, 0)), (float(share), -int(owner)))
        for number, (share, owner) in sorted(best.items()):
            origin, is_question = self._origins[-owner]
            yield Leak(number, origin, "the question" if is_question else "the record", share)


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All numbers from each start on, as many as its count."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts) + np.repeat(starts, counts)
