"""Token accuracy of pre-training against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import EvalPrediction

from hftune.trainers.pt import most_likely, token_accuracy


def accuracy(predicted: list[int], labels: list[int]) -> float:
    return token_accuracy(EvalPrediction(np.array([predicted]), np.array([labels])))["token_accuracy"]


def test_a_position_predicts_the_next_token() -> None:
    # Position 0 says 5, position 1 says 6, ...; what comes after them: 5, 6, 9.
    assert accuracy([5, 6, 7, 0], [1, 5, 6, 9]) == pytest.approx(2 / 3)


def test_what_is_not_trained_is_left_out() -> None:
    assert accuracy([1, 2, 3, 0], [0, 1, -100, 5]) == 0.5
    assert math.isnan(accuracy([1, 0], [0, -100]))


def test_ids_of_logits_and_of_ids() -> None:
    logits = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    assert most_likely((logits,), logits).tolist() == [[1, 0]] == most_likely(torch.tensor([[1, 0]]), logits).tolist()
