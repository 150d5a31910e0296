"""Intervals by hand, by the normal approximation, and as properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.tools.evaluating.results import difference, figure

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30)


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


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        found = figure(random.normal(2, 1, 60).tolist())
        covered += found.low <= 2 <= found.high
    assert 88 <= covered <= 100


def test_what_is_hard_for_both_does_not_widen_a_difference() -> None:
    random = np.random.default_rng(2)
    theirs = random.normal(0, 10, 200)
    ours = theirs + random.normal(0.5, 0.1, 200)
    found = difference(ours.tolist(), theirs.tolist())
    assert 0.45 < found.low < found.value < found.high < 0.55
    assert figure(ours.tolist()).high - figure(ours.tolist()).low > 1


@settings(max_examples=20, deadline=None)
@given(VALUES)
def test_a_model_differs_from_itself_by_nothing(values: list[float]) -> None:
    found = difference(values, values)
    assert (found.value, found.low, found.high) == (0, 0, 0)


@settings(max_examples=20, deadline=None)
@given(VALUES)
def test_the_interval_lies_within_the_values(values: list[float]) -> None:
    found = figure(values)
    near = 1e-9 + 1e-9 * max(map(abs, values))
    assert min(values) - near <= found.low <= found.high <= max(values) + near
