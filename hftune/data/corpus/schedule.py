"""Endless sources spread evenly over an endless run, in shares that are kept exactly (pre-training on blocks).

The source of a block depends on its number and the shares alone: not on the number of processes or workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np


def as_shares(weights: Sequence[float]) -> list[int]:
    """Positive weights as whole numbers in the same proportion: [0.5, 1.5] is [1, 3]."""
    # By its text: 0.1 is a tenth then, and not the binary fraction next to it.
    shares = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(share.denominator for share in shares))
    whole = [int(share * scale) for share in shares]
    divisor = math.gcd(*whole)
    return [share // divisor for share in whole]


class Schedule:
    """The source of each block of an endless run.

    The k-th block of a source is due at (k + 1/2) / share, and blocks come in the order in which they are due. So
    after any number of blocks a source is off its exact share by half a block for each source at most, and after
    `sum(shares)` blocks it is exact.

    Args:
        shares: A whole number a source, above zero.
    """

    STRETCH = 4096
    """Blocks that are sorted at once; a stretch is found by arithmetic, not by going through those before it."""

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = [int(share) for share in shares]
        self._total = sum(self.shares)
        self._cached: tuple[int, int, np.ndarray, np.ndarray] | None = None

    def locate(self, block: int) -> tuple[int, int]:
        """The source of a block of the run, and how many blocks of that source came before it."""
        # The usual case, and the only one that needs no table.
        if len(self.shares) == 1:
            return 0, block
        _, first, sources, ranks = self._stretch_of(block)
        return int(sources[block - first]), int(ranks[block - first])

    def before(self, block: int) -> list[int]:
        """How many of the blocks in front of `block` each source gave."""
        if len(self.shares) == 1:
            return [block]
        number, first, sources, _ = self._stretch_of(block)
        here = np.bincount(sources[: block - first], minlength=len(self.shares))
        return [due + int(count) for due, count in zip(self._due(number * self.STRETCH), here, strict=True)]

    def _due(self, time: int) -> list[int]:
        """Blocks of each source that are due before a time, on whose scale the run gives a block a unit.

        The k-th is due at (k + 1/2) * total / share, so those before are share * time / total, rounded (half down).
        """
        total = self._total
        return [(2 * share * time + total - 1) // (2 * total) for share in self.shares]

    def _stretch_of(self, block: int) -> tuple[int, int, np.ndarray, np.ndarray]:
        """(number, first block, source of each, rank of each in its source) of the stretch that holds `block`."""
        number = block // self.STRETCH
        # Rounding shifts the first block of a stretch by half a block a source at most.
        while sum(self._due(number * self.STRETCH)) > block:
            number -= 1
        while sum(self._due((number + 1) * self.STRETCH)) <= block:
            number += 1
        if self._cached is None or self._cached[0] != number:
            self._cached = number, *self._sorted(number)
        return self._cached

    def _sorted(self, number: int) -> tuple[int, np.ndarray, np.ndarray]:
        first, last = self._due(number * self.STRETCH), self._due((number + 1) * self.STRETCH)
        ranks = [np.arange(begin, end, dtype=np.int64) for begin, end in zip(first, last, strict=True)]
        sources = np.repeat(np.arange(len(ranks)), [len(part) for part in ranks])
        # Halves, so that the first block of a source comes in the middle of its first interval, and a large source
        # does not give all of its blocks before a small one.
        due = [(part + 0.5) * (self._total / share) for part, share in zip(ranks, self.shares, strict=True)]
        # Of blocks due at the same time the earlier source goes first, on every machine.
        order = np.lexsort([sources, np.concatenate(due)])
        return sum(first), sources[order], np.concatenate(ranks)[order]
