"""Figures of many records with intervals, and differences of two models on the same records.

An interval holds 95 % of the figures of 2000 bootstrap samples of the records (Efron 1979); of a difference both models
are given the same samples, so that what is hard in a record for both does not widen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

SAMPLES, SHARE = 2000, 0.95
_SEED = 0
# Of the counts of a block of samples.
_BLOCK_BYTES = 1 << 25


@dataclass(frozen=True)
class Figure:
    """A weighted mean over records, and the interval that it lies in.

    Args:
        low, high: Ends of the interval.
        records: How many it is of.
    """

    value: float
    low: float
    high: float
    records: int

    def to_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def figure(values: Sequence[float], weights: Sequence[float] | None = None) -> Figure:
    """The mean of values, each with a weight, such as the loss of a record with its trained tokens.

    Args:
        values: One a record, at least one.
        weights: Above 0; None: 1 each.
    """
    of = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(of)) if weights is None else np.asarray(weights, dtype=np.float64)
    assert len(of) == len(weight) > 0, "a weight a record"
    # The same for all figures of as many records: two models are given the same samples.
    random = np.random.default_rng(_SEED)
    block = max(1, _BLOCK_BYTES // (8 * len(of)))
    means = []
    for start in range(0, SAMPLES, block):
        chances = np.full(len(of), 1 / len(of))
        counts = random.multinomial(len(of), chances, size=min(block, SAMPLES - start))
        means.append(counts @ (weight * of) / (counts @ weight))
    low, high = np.quantile(np.concatenate(means), [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return Figure(float(weight @ of / weight.sum()), float(low), float(high), len(of))


def difference(ours: Sequence[float], theirs: Sequence[float], weights: Sequence[float] | None = None) -> Figure:
    """The mean of `ours` less that of `theirs`, which are of the same records, with the same weights."""
    return figure(np.subtract(ours, theirs).tolist(), weights)
