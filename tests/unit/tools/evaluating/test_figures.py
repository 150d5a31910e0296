"""Intervals by hand, by the normal approximation, and as properties."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hftune.tools.evaluating.results import difference, figure


def test_the_mean_is_weighted_by_tokens() -> None:
    found = figure([1.0, 4.0], [3, 1])
    assert found.value == pytest.approx(1.75) and found.records == 2
    # A sample of two records has one of them twice, or both: the ends of the interval are those of the records.
    assert (found.low, found.high) == (1.0, 4.0)


def test_an_interval_of_many_coins_is_the_normal_one() -> None:
    found = figure([1.0] * 150 + [0.0] * 350)
    assert found.value == pytest.approx(0.3)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 500)
    assert found.low == pytest.approx(0.3 - half, abs=0.004) and found.high == pytest.approx(0.3 + half, abs=0.004)


def test_what_is_hard_for_both_does_not_widen_a_difference() -> None:
    random = np.random.default_rng(2)
    theirs = random.normal(0, 10, 200)
    ours = theirs + random.normal(0.5, 0.1, 200)
    found = difference(ours.tolist(), theirs.tolist())
    assert 0.45 < found.low < found.value < found.high < 0.55
    assert figure(ours.tolist()).high - figure(ours.tolist()).low > 1
