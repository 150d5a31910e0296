"""Endless sources spread evenly over an endless run, in shares that are kept exactly (pre-training on blocks).

The source of a block depends on its number and the shares alone: not on the number of processes or workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


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

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = [int(share) for share in shares]
        self._total = sum(self.shares)

    def locate(self, block: int) -> tuple[int, int]:
        """The source of a block of the run, and how many blocks of that source came before it."""
        first, places = self._around(block)
        _, source, rank = places[block - sum(first)]
        return source, rank

    def before(self, block: int) -> list[int]:
        """How many of the blocks in front of `block` each source gave."""
        given, places = self._around(block)
        for _, source, _ in places[: block - sum(given)]:
            given[source] += 1
        return given

    def _around(self, block: int) -> tuple[list[int], list[tuple[float, int, int]]]:
        """Blocks that each source gave before the unit of time of a block; (time, source, rank) of those due in it."""
        # Rounding shifts the first block of a unit by half a block a source at most.
        time = block
        while sum(self._due(time)) > block:
            time -= 1
        while sum(self._due(time + 1)) <= block:
            time += 1
        first, last = self._due(time), self._due(time + 1)
        # Halves, so that the first block of a source comes in the middle of its first interval, and a large source
        # does not give all of its blocks before a small one. Of those due at the same time the earlier source is first.
        due = [
            ((rank + 0.5) * (self._total / self.shares[source]), source, rank)
            for source, begin in enumerate(first)
            for rank in range(begin, last[source])
        ]
        return first, sorted(due)

    def _due(self, time: int) -> list[int]:
        """Blocks of each source that are due before a time, on whose scale the run gives a block a unit.

        The k-th is due at (k + 1/2) * total / share, so those before are share * time / total, rounded (half down).
        """
        total = self._total
        return [(2 * share * time + total - 1) // (2 * total) for share in self.shares]
