"""What held-out records say of a reward model: figures over all and of each source."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ECE_BINS = 10
"""Of equal width, over confidences from 0.5 to 1."""

Steps = Sequence[np.ndarray]
"""An array an answer, of one number a step."""


def calibration_error(predicted: np.ndarray, came: np.ndarray, bins: int = ECE_BINS) -> float:
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


def pair_figures(scores: np.ndarray) -> dict[str, float]:
    """Accuracy, margin and calibration of scores (pairs, 2), chosen and rejected.

    Returns:
        accuracy: Share of pairs whose chosen answer scores higher; a tie is wrong.
        margin: Mean of chosen - rejected.
        ece: Expected calibration error of sigmoid(chosen - rejected), over `ECE_BINS` bins.
        mean_reward, std_reward: Of all scores.
    """
    chosen, rejected = scores[:, 0].astype(np.float64), scores[:, 1].astype(np.float64)
    # exp overflows where the model is certain; 0 is right there.
    with np.errstate(over="ignore"):
        wins = 1 / (1 + np.exp(rejected - chosen))
    return {
        "accuracy": float((chosen > rejected).mean()),
        "margin": float((chosen - rejected).mean()),
        "ece": calibration_error(wins, np.ones_like(wins)),
        "mean_reward": float(scores.mean()),
        "std_reward": float(scores.std()),
    }


def pair_report(scores: np.ndarray, sources: Sequence[str]) -> dict[str, Any]:
    """The figures of all pairs and of each source.

    Args:
        scores: (pairs, 2), chosen and rejected.
        sources: One a pair.

    Returns:
        Plain values: pairs, the figures, ece_bins, by_source.
    """
    return _report(sources, lambda rows: {"pairs": len(rows), **pair_figures(scores[rows])})


def step_figures(right: Steps, labels: Steps) -> dict[str, float]:
    """Figures over all answers.

    Args:
        right: The model's probability that a step is right, (steps,) an answer.
        labels: From 0 to 1, likewise; labelled steps only. 0.5 stands for "neither", and is left out of the accuracy.

    Returns:
        step_accuracy, NaN where no step has a label; ece of the steps, over `ECE_BINS` bins; and those of
        `first_error`.
    """
    said, is_right = np.concatenate(list(right)), np.concatenate(list(labels))
    sure = is_right != 0.5
    accuracy = float(((said > 0.5) == (is_right > 0.5))[sure].mean()) if sure.any() else math.nan
    found, expected = [np.array([first_wrong(each) for each in side]) for side in (right, labels)]
    return {
        "step_accuracy": accuracy,
        "ece": calibration_error(said, is_right),
        **first_error(found, expected),
    }


def first_wrong(right: np.ndarray) -> int:
    """The number of the first step below 0.5; -1 for none."""
    below = np.flatnonzero(right < 0.5)
    return int(below[0]) if len(below) else -1


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


def step_report(right: Steps, labels: Steps, sources: Sequence[str]) -> dict[str, Any]:
    """The figures of all answers and of each source.

    Returns:
        Plain values: answers, steps, the figures, ece_bins, by_source.
    """

    def figures(rows: list[int]) -> dict[str, Any]:
        part, wanted = [right[row] for row in rows], [labels[row] for row in rows]
        return {"answers": len(rows), "steps": sum(map(len, part)), **step_figures(part, wanted)}

    return _report(sources, figures)


def _report(sources: Sequence[str], figures: Callable[[list[int]], dict[str, Any]]) -> dict[str, Any]:
    by_source = {
        source: figures([row for row, name in enumerate(sources) if name == source]) for source in sorted(set(sources))
    }
    return figures([*range(len(sources))]) | {"ece_bins": ECE_BINS, "by_source": by_source}


def describe(report: dict[str, Any]) -> str:
    """A report as lines of text."""
    lines = [f"held out: {_line(report)} ({report['ece_bins']} bins)"]
    # Of a single source the line above says it.
    several = report["by_source"] if len(report["by_source"]) > 1 else {}
    return "\n".join([*lines, *(f"  {source}: {_line(part)}" for source, part in several.items())])


def _line(part: dict[str, Any]) -> str:
    if "pairs" in part:
        said = f"{part['pairs']} pairs, accuracy {part['accuracy']:.3f}, margin {part['margin']:.3f}"
    else:
        said = f"{part['answers']} answers, {part['steps']} steps, accuracy {part['step_accuracy']:.3f}, first error "
        said += f"{part['first_error_accuracy']:.3f} (F1 {part['first_error_f1']:.3f})"
    return f"{said}, ECE {part['ece']:.3f}"
