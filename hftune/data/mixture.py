"""Records of several sources by weight: which of them each virtual epoch of a run draws, in exact numbers.

An epoch depends on its arguments alone: not on the number of processes or workers, and not on what was drawn before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from hftune.errors import ArgumentError


def permutation(count: int, *key: int) -> np.ndarray:
    """A random order of 0 to `count` - 1 (int64) that depends on the key alone.

    Sorted raw bits, because numpy promises those for good; what its `permutation` returns may change with a version,
    and a run that resumes after an upgrade would repeat documents.
    """
    # The length comes first: to SeedSequence, keys that differ only in zeros at the end are the same.
    bits = np.random.PCG64(np.random.SeedSequence((len(key), *key))).random_raw(count)
    return np.argsort(bits, kind="stable")


def largest_remainder(weights: Sequence[float | int], total: int) -> list[int]:
    """`total` split in proportion to the weights: each quota rounded down, what is left to the largest remainders.

    Equal remainders go to the earlier source.
    """
    # Fractions, since equal remainders must be equal on every machine; floats would break ties by their rounding.
    shares = [Fraction(weight) for weight in weights]
    quotas = [total * share / sum(shares) for share in shares]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda source: (counts[source] - quotas[source], source))
    for source in by_remainder[: total - sum(counts)]:
        counts[source] += 1
    return counts


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
    (mixture, seed, epoch) alone, so that a run that resumes mid-epoch by skipping indices continues exactly.

    Args:
        mixture: Sources and the length of an epoch.
        seed: Of all orders.
    """

    def __init__(self, mixture: Mixture, seed: int) -> None:
        self.mixture = mixture
        # SeedSequence takes no negative numbers, and seeds may be some.
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
        # Two keys (seed, epoch) here and three below: `permutation` keeps keys of other lengths apart.
        yield from drawn[permutation(len(drawn), self.seed, self.epoch)].tolist()

    def _drawn(self, source: int) -> np.ndarray:
        """Indices of this epoch's records of a source: a stretch of its endless stream of random orders."""
        size, count = self.mixture.sizes[source], self._counts[source]
        # Where the stretch begins follows from the epoch's number, so nothing drawn before has to be remembered.
        start = self.epoch * count
        rounds = range(start // size, (start + count - 1) // size + 1)
        stream = np.concatenate([permutation(size, self.seed, source, number) for number in rounds])
        begin = start - rounds[0] * size
        return stream[begin : begin + count] + self._offsets[source]


class ReorderedSampler(torch.utils.data.Sampler[int]):
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
        return len(self.places)  # type: ignore[arg-type]  # torch 2.11: Sampler declares no __len__, those given have one

    def __iter__(self) -> Iterator[int]:
        # Not lazily: the pattern may ask for a place that the order has not reached yet.
        indices = list(self.order)
        return (indices[place] for place in self.places)


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
