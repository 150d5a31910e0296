"""Guards against rewards that are gamed."""

from __future__ import annotations

import math

import pytest

from hftune.trainers.guards import Drift, distinct_ngrams


def test_repetition() -> None:
    assert distinct_ngrams([1, 2, 3, 4, 5]) == 1.0
    assert distinct_ngrams([7] * 10) == 1 / 8
    assert distinct_ngrams([1, 2, 1, 2, 1, 2]) == 2 / 4  # 121, 212, 121, 212
    assert distinct_ngrams([1, 2]) == 1.0


def test_drift_is_what_the_judge_does_not_see() -> None:
    drift = Drift()
    assert drift.measure([0.0, 2.0], [10.0, 30.0]) == 0.0
    assert drift.measure([2.0, 4.0], [30.0, 50.0]) == pytest.approx(0.0), "both gained 2 standard deviations"
    assert drift.measure([4.0, 6.0], [20.0, 20.0]) == pytest.approx(4.0), "only the reward gained"
    assert math.isnan(drift.measure([math.nan], [1.0]))
    assert Drift(**drift.state()).measure([4.0, 6.0], [20.0, 20.0]) == pytest.approx(4.0)
