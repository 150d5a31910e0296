"""Figures of reward models, as pure functions of arrays."""

from __future__ import annotations

import math

import numpy as np


def calibration_error(predicted: np.ndarray, came: np.ndarray, bins: int) -> float:
    """Expected calibration error: how far a stated confidence is from the share that is right.

    A prediction is "yes" above 0.5 and its confidence max(p, 1 - p), from 0.5 to 1. Over `bins` bins of equal width of
    that range: sum of (share of predictions in the bin) x |share that is right - mean confidence| (Guo et al. 2017,
    arXiv:1706.04599, equation 3). A prediction of exactly 0.5 is half right.

    Args:
        predicted: Probabilities of an outcome.
        came: 1 where it came, 0 where not.
    """
    probability = predicted.astype(np.float64)
    confidence = np.maximum(probability, 1 - probability)
    right = np.where(probability == 0.5, 0.5, (probability > 0.5) == (came > 0.5))
    number = np.minimum((2 * (confidence - 0.5) * bins).astype(int), bins - 1)
    gaps = np.bincount(number, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(probability))


def step_accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Share of steps that are judged as they are labelled; NaN where none has a label.

    Args:
        predicted: Probabilities that steps are right.
        labels: From 0 to 1; 0.5 stands for "neither", and is left out.
    """
    sure = labels != 0.5
    return float(((predicted > 0.5) == (labels > 0.5))[sure].mean()) if sure.any() else math.nan


def first_error(found: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Whether the first wrong step of answers is found, as ProcessBench measures it (arXiv:2412.06559).

    Args:
        found, labels: The number of the first wrong step of each answer, -1 for none.

    Returns:
        The share of answers for which both are the same, over all of them, over those with an error and over those
        without, and `f1`, the harmonic mean of the last two; NaN where there are none.
    """
    same, wrong = found == labels, labels >= 0
    with_error = float(same[wrong].mean()) if wrong.any() else math.nan
    without = float(same[~wrong].mean()) if (~wrong).any() else math.nan
    total = with_error + without
    return {
        "first_error_accuracy": float(same.mean()),
        "first_error_with": with_error,
        "first_error_without": without,
        "first_error_f1": 2 * with_error * without / total if total > 0 else total,
    }
