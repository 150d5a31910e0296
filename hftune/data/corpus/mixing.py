"""Sources by weight: which source each example of a run comes from, in shares that are kept exactly.

`Schedule` spreads endless sources evenly over an endless run (pre-training on blocks). `MixtureSampler` draws a
virtual epoch from records that can be counted (all stages). Both depend on their arguments alone: not on the number
of processes or workers, and not on what was drawn before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from hftune.data.corpus.order import permutation
from hftune.errors import ArgumentError


def as_shares(weights: Sequence[float | str | int], place: str = "--weights") -> list[int]:
    """Weights as whole numbers in the same proportion: ["0.5", "1.5"] is [1, 3].

    Raises:
        ArgumentError: Not a number, or not above zero.
    """
    shares = []
    for weight in weights:
        try:
            share = Fraction(str(weight).strip())
        except (ValueError, ZeroDivisionError) as error:
            raise ArgumentError(
                f"{weight!r} is no weight", place=place, fix="Give numbers, such as 1,2.5,1."
            ) from error
        if share <= 0:
            raise ArgumentError(f"the weight {weight} is not above 0", place=place, fix="Leave the source out instead.")
        shares.append(share)
    scale = math.lcm(*(share.denominator for share in shares))
    whole = [int(share * scale) for share in shares]
    divisor = math.gcd(*whole)
    return [share // divisor for share in whole]


def largest_remainder(weights: Sequence[float | int], total: int) -> list[int]:
    """`total` split in proportion to the weights: each quota rounded down, what is left to the largest remainders.

    Equal remainders go to the earlier source.
    """
    shares = [Fraction(weight) for weight in weights]
    quotas = [total * share / sum(shares) for share in shares]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda source: (counts[source] - quotas[source], source))
    for source in by_remainder[: total - sum(counts)]:
        counts[source] += 1
    return counts


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
        due = [(part + 0.5) * (self._total / share) for part, share in zip(ranks, self.shares, strict=True)]
        order = np.lexsort([sources, np.concatenate(due)])
        return sum(first), sources[order], np.concatenate(ranks)[order]


@dataclass(frozen=True)
class Mixture:
    """How to draw a virtual epoch from records that lie one source after the other in a dataset.

    Attributes:
        sizes: Records of each source, in the order of the dataset.
        weights: Share of each source; None: by its size.
        num_samples: Records in a virtual epoch; None: as many as there are.
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    num_samples: int | None = None

    def counts(self) -> list[int]:
        """Records of each source in an epoch, by largest remainder.

        Raises:
            ArgumentError: A source is empty, or its share of an epoch is not even one record.
        """
        if not self.sizes or min(self.sizes) < 1:
            raise ArgumentError("a source without a record cannot be mixed in", fix="Leave it out.")
        counts = largest_remainder(self.weights or self.sizes, self.num_samples or sum(self.sizes))
        if 0 in counts:
            raise ArgumentError(
                f"source {counts.index(0) + 1} of {len(counts)} would never be drawn: its share of the "
                f"{sum(counts)} records of an epoch is less than one",
                place="--num_samples_each_epoch",
                fix="Give a longer epoch or a larger weight.",
            )
        return counts


class MixtureSampler(torch.utils.data.Sampler[int]):
    """Indices of a virtual epoch: the exact number of each source, all shuffled together.

    Each source is gone through in seeded random orders that are used up before the next begins, over the ends of
    epochs as well: no record comes again before every record of its source has come as often. An epoch depends on
    (mixture, seed, epoch) alone, so that a run that goes on mid-epoch by skipping indices goes on exactly.

    Args:
        mixture: Sources and the length of an epoch.
        seed: Of all orders.
    """

    def __init__(self, mixture: Mixture, seed: int) -> None:
        self.mixture = mixture
        self.seed = seed & 0xFFFFFFFF
        self.epoch = 0
        self._counts = mixture.counts()
        self._offsets = np.concatenate([[0], np.cumsum(mixture.sizes)])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(self._counts)

    def __iter__(self) -> Iterator[int]:
        drawn = np.concatenate([self._drawn(source) for source in range(len(self._counts))])
        yield from drawn[permutation(len(drawn), self.seed, self.epoch)].tolist()

    def _drawn(self, source: int) -> np.ndarray:
        """Indices of this epoch's records of a source: a stretch of its endless stream of random orders."""
        size, count = self.mixture.sizes[source], self._counts[source]
        start = self.epoch * count
        rounds = range(start // size, (start + count - 1) // size + 1)
        stream = np.concatenate([permutation(size, self.seed, source, number) for number in rounds])
        begin = start - rounds[0] * size
        return stream[begin : begin + count] + self._offsets[source]


class LookedUp(torch.utils.data.Sampler[int]):
    """Places that one sampler gives, looked up in the order of an epoch.

    Args:
        places: Gives places 0 to `len(order)` - 1 in a pattern, such as each of them several times.
        order: Gives an epoch's indices.
    """

    def __init__(self, places: torch.utils.data.Sampler[int], order: MixtureSampler) -> None:
        self.places, self.order = places, order

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        self.order.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.places)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        indices = list(self.order)
        return (indices[place] for place in self.places)
