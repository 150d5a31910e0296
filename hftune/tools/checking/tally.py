"""Counts of a source, in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hftune.tools.checking.records import Record

# Of a histogram whose steps grow: lengths are known to 5 %.
_STEP = math.log(1.05)


class Lengths:
    """Lengths of texts as a histogram: the largest exactly, the others to 5 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.total = self.longest = 0

    def add(self, length: int) -> None:
        """Count one."""
        self._counts[round(math.log(length) / _STEP) if length else -1] += 1
        self.total += length
        self.longest = max(self.longest, length)

    def merge(self, other: Lengths) -> None:
        """Add those of another part of the data."""
        self._counts.update(other._counts)
        self.total += other.total
        self.longest = max(self.longest, other.longest)

    def quantile(self, share: float) -> int:
        """The length that this share of the texts does not exceed."""
        left = share * sum(self._counts.values())
        for step, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return min(self.longest, round(math.exp(step * _STEP))) if step >= 0 else 0
        return self.longest


@dataclass
class Tally:
    """What is counted of the records of a source.

    Attributes:
        records: All that were read, those included that cannot be used.
        kinds: What records are for.
        turns: Records by the number of their turns.
        tools: Records that offer or call functions.
        thoughts: Records with thoughts.
        characters: Of what is said.
        tokens: Of the same, where there is a tokenizer.
        found: Findings by kind.
    """

    records: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    tools: int = 0
    thoughts: int = 0
    characters: Lengths = field(default_factory=Lengths)
    tokens: Lengths = field(default_factory=Lengths)
    found: Counter[str] = field(default_factory=Counter)

    def add(self, record: Record, characters: int) -> None:
        """Count one record that can be used."""
        self.kinds[record.kind] += 1
        # Conversations of more turns than anybody holds are counted together.
        self.turns[min(len(record.spoken), 100)] += 1
        self.tools += record.tools
        self.thoughts += record.thoughts
        self.characters.add(characters)

    def merge(self, other: Tally) -> None:
        """Add those of another part of the source."""
        self.records += other.records
        self.tools += other.tools
        self.thoughts += other.thoughts
        for name in ("kinds", "turns", "found"):
            getattr(self, name).update(getattr(other, name))
        self.characters.merge(other.characters)
        self.tokens.merge(other.tokens)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the summary in the output folder."""
        named = {"kinds", "found"}
        return {
            "records": self.records,
            **{name: dict(getattr(self, name).most_common()) for name in sorted(named)},
            "turns": {str(turns): count for turns, count in sorted(self.turns.items())},
            "tools": self.tools,
            "thoughts": self.thoughts,
            "characters": _described(self.characters),
            **({"tokens": _described(self.tokens)} if self.tokens.total else {}),
        }


def _described(lengths: Lengths) -> dict[str, int]:
    quantiles = {f"p{round(100 * share)}": lengths.quantile(share) for share in (0.05, 0.5, 0.95)}
    return {"total": lengths.total, **quantiles, "longest": lengths.longest}
