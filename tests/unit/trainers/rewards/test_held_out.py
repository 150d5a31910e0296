"""Figures of reward models against numbers worked by hand, and what is said of them in lines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hftune.trainers.rewards.held_out import (
    calibration_error,
    describe,
    first_error,
    pair_figures,
    pair_report,
    step_figures,
    step_report,
)

SCORES = np.array([[1.0, 0.0], [3.0, 1.0], [0.5, 2.5]])


def test_pairs() -> None:
    figures = pair_figures(np.array([[2.0, 1.0], [0.0, 0.5], [1.0, 1.0], [3.0, 0.0]]))  # right, wrong, a tie, right
    assert figures["accuracy"] == 0.5 and figures["margin"] == pytest.approx(0.875)


@pytest.mark.parametrize(
    ("predicted", "came", "bins", "expected"),
    [
        # Sure by 0.9 four times and right three times: |0.75 - 0.9|, in whichever direction the outcomes lie.
        ([0.9, 0.9, 0.1, 0.1], [1, 1, 0, 1], 10, 0.15),
        # Two bins: (|1 - 0.95| + |0 - 0.6|) / 2; one bin: |0.5 - 0.775|.
        ([0.95, 0.6], [1, 0], 10, 0.325),
        ([0.95, 0.6], [1, 0], 1, 0.275),
        ([1.0, 0.5], [1, 0], 10, 0.0),
    ],
)
def test_calibration(predicted: list[float], came: list[float], bins: int, expected: float) -> None:
    assert calibration_error(np.array(predicted), np.array(came), bins) == pytest.approx(expected)


def test_steps() -> None:
    right = [np.array([0.9, 0.2, 0.8]), np.array([0.9, 0.8]), np.array([0.4])]
    figures = step_figures(right, [np.array([1.0, 0.0, 0.0]), np.array([1.0, 0.0]), np.array([1.0])])
    assert figures["step_accuracy"] == pytest.approx(3 / 6)
    # The first wrong steps are 1, none and 0, and said to be 1, 1 and none.
    assert figures["first_error_accuracy"] == pytest.approx(1 / 3)
    # One of the two answers with an error, none of the one without.
    assert (figures["first_error_with"], figures["first_error_without"]) == (0.5, 0.0)
    assert figures["first_error_f1"] == 0.0
    assert step_figures([np.array([0.9, 0.2, 0.9])], [np.array([1.0, 0.5, 0.0])])["step_accuracy"] == 0.5
    assert math.isnan(step_figures([np.array([0.9])], [np.array([0.5])])["step_accuracy"])


def test_first_errors() -> None:
    # Of three answers with an error one is found; of two without, one is left alone: F1 = 2 (1/3) (1/2) / (5/6).
    found = first_error(np.array([2, 0, -1, -1, 1]), np.array([2, 1, 3, -1, -1]))
    assert found["first_error_accuracy"] == pytest.approx(2 / 5)
    assert found["first_error_with"] == pytest.approx(1 / 3) and found["first_error_without"] == 0.5
    assert found["first_error_f1"] == pytest.approx(0.4)
    assert math.isnan(first_error(np.array([1]), np.array([1]))["first_error_f1"])


def test_report_by_hand() -> None:
    scores = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 4.0]], dtype=np.float32)
    report = pair_report(scores, ["b", "a", "b"])
    assert report["accuracy"] == pytest.approx(1 / 3) and report["margin"] == pytest.approx(-2 / 3)
    # Confidences 1 / (1 + e^-2) = 0.8808 (right), 0.5 (half right), 1 / (1 + e^-4) = 0.9820 (wrong), each in a bin of
    # its own: (0.1192 + 0 + 0.9820) / 3.
    assert report["ece"] == pytest.approx(0.36707, abs=1e-4) and report["ece_bins"] == 10
    assert [report["by_source"][name]["pairs"] for name in "ab"] == [1, 2]


def test_figures_of_one_source_are_said_once_and_of_several_each_has_its_own() -> None:
    (line,) = describe(pair_report(SCORES, ["a", "a", "a"])).splitlines()
    assert "3 pairs, accuracy 0.667, margin 0.333" in line
    lines = describe(pair_report(SCORES, ["a", "b", "b"])).splitlines()
    assert "a: 1 pairs, accuracy 1.000, margin 1.000" in lines[1]
    assert "b: 2 pairs, accuracy 0.500, margin 0.000" in lines[2]
    right, labels = [np.array([0.9, 0.2]), np.array([0.9])], [np.array([1.0, 1.0]), np.array([1.0])]
    first, *more = describe(step_report(right, labels, ["a", "b"])).splitlines()
    assert "2 answers, 3 steps, accuracy 0.667, first error 0.500" in first and len(more) == 2
