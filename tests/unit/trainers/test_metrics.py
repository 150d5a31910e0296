"""Figures of evaluations against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from transformers import EvalPrediction

from hftune.trainers import metrics
from hftune.trainers.pt import token_accuracy
from hftune.trainers.rewards.held_out_pairs import pair_figures


def test_token_accuracy_leaves_out_what_is_not_trained() -> None:
    assert metrics.token_accuracy(np.array([1, 2, 3, 4]), np.array([1, -100, 3, 5])) == pytest.approx(2 / 3)
    assert math.isnan(metrics.token_accuracy(np.array([1]), np.array([-100])))


def test_a_position_predicts_the_next_token() -> None:
    predicted = np.array([[5, 6, 7, 0]])  # position 0 says 5, position 1 says 6, ...
    labels = np.array([[1, 5, 6, 9]])  # what comes after them: 5, 6, 9
    assert token_accuracy(EvalPrediction(predicted, labels)) == {"token_accuracy": pytest.approx(2 / 3)}


def test_perplexity_of_a_loss_that_has_diverged() -> None:
    assert metrics.perplexity(math.log(12.0)) == pytest.approx(12.0)
    assert metrics.perplexity(1e4) == math.inf


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
