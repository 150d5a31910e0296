"""Figures of reward models against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hftune.trainers.rewards import metrics
from hftune.trainers.rewards.held_out_pairs import pair_figures


def test_pairs() -> None:
    scores = np.array([[2.0, 1.0], [0.0, 0.5], [1.0, 1.0], [3.0, 0.0]])  # right, wrong, a tie, right
    figures = pair_figures(scores)
    assert figures["accuracy"] == 0.5 and figures["margin"] == pytest.approx(0.875)


def test_calibration() -> None:
    # Sure by 0.9 four times and right three times: |0.75 - 0.9|, in whichever direction the outcomes lie.
    assert ece([0.9, 0.9, 0.1, 0.1], [1, 1, 0, 1], 10) == pytest.approx(0.15)
    # Two bins: (|1 - 0.95| + |0 - 0.6|) / 2; one bin: |0.5 - 0.775|.
    for bins, expected in ((10, 0.325), (1, 0.275)):
        assert ece([0.95, 0.6], [1, 0], bins) == pytest.approx(expected)
    assert ece([1.0, 0.5], [1, 0], 10) == 0.0


def ece(predicted: list[float], came: list[float], bins: int) -> float:
    """The calibration error of lists."""
    return metrics.calibration_error(np.array(predicted), np.array(came), bins)


def test_steps_without_a_label_are_left_out() -> None:
    assert metrics.step_accuracy(np.array([0.9, 0.2, 0.9]), np.array([1.0, 0.5, 0.0])) == 0.5
    assert math.isnan(metrics.step_accuracy(np.array([0.9]), np.array([0.5])))


def test_first_errors() -> None:
    # Of three answers with an error one is found; of two without, one is left alone: F1 = 2 (1/3) (1/2) / (5/6).
    found = metrics.first_error(np.array([2, 0, -1, -1, 1]), np.array([2, 1, 3, -1, -1]))
    assert found["first_error_accuracy"] == pytest.approx(2 / 5)
    assert found["first_error_with"] == pytest.approx(1 / 3) and found["first_error_without"] == 0.5
    assert found["first_error_f1"] == pytest.approx(0.4)
    assert math.isnan(metrics.first_error(np.array([1]), np.array([1]))["first_error_f1"])
