"""What held-out steps say of a process reward model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hftune.trainers.rewards.held_out_pairs import ECE_BINS, HISTOGRAM_BINS, bars, counts
from hftune.trainers.rewards.metrics import calibration_error, first_error, step_accuracy

Steps = Sequence[np.ndarray]
"""An array an answer, of one number a step."""


def step_figures(right: Steps, labels: Steps) -> dict[str, float]:
    """Figures over all answers.

    Args:
        right: The model's probability that a step is right, (steps,) an answer.
        labels: From 0 to 1, likewise; labelled steps only.

    Returns:
        step_accuracy; ece of the steps, over `ECE_BINS` bins; first_error_accuracy (is the first step below 0.5 the
        first one labelled so), first_error_with and first_error_without (of answers with an error, and without), and
        their harmonic mean first_error_f1.
    """
    said, is_right = np.concatenate(list(right)), np.concatenate(list(labels))
    found, expected = [np.array([first_wrong(each) for each in side]) for side in (right, labels)]
    return {
        "step_accuracy": step_accuracy(said, is_right),
        "ece": calibration_error(said, is_right, ECE_BINS),
        **first_error(found, expected),
    }


def first_wrong(right: np.ndarray) -> int:
    """The number of the first step below 0.5; -1 for none."""
    below = np.flatnonzero(right < 0.5)
    return int(below[0]) if len(below) else -1


def step_report(right: Steps, labels: Steps, sources: Sequence[str]) -> dict[str, Any]:
    """The figures of all answers and of each source, with histograms of the probability that a step is right.

    Returns:
        Plain values: answers, steps, the figures, ece_bins, edges, by_source.
    """
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    by_source = {}
    for source in sorted(set(sources)):
        chosen = [number for number, name in enumerate(sources) if name == source]
        part, wanted = [right[number] for number in chosen], [labels[number] for number in chosen]
        said, is_right = np.concatenate(part), np.concatenate(wanted) > 0.5
        histograms = {"right": counts(said[is_right], edges), "wrong": counts(said[~is_right], edges)}
        by_source[source] = {"answers": len(chosen), "steps": len(said), **step_figures(part, wanted), **histograms}
    whole = {"answers": len(right), "steps": sum(map(len, right)), **step_figures(right, labels)}
    return whole | {"ece_bins": ECE_BINS, "edges": edges.tolist(), "by_source": by_source}


def describe_steps(report: dict[str, Any]) -> str:
    """The report as lines of text, a block a bin."""
    lines = [f"held out: {_line(report)} ({report['ece_bins']} bins); P(right) from 0 to 1:"]
    width = max(map(len, report["by_source"]))
    for source, part in report["by_source"].items():
        lines.append(f"  {source:{width}}  {_line(part)}")
        lines += [f"  {'':{width}}    {side:8} |{bars(part[side])}|" for side in ("right", "wrong")]
    return "\n".join(lines)


def _line(part: dict[str, Any]) -> str:
    return (
        f"{part['answers']} answers, {part['steps']} steps, accuracy {part['step_accuracy']:.3f}, first error "
        f"{part['first_error_accuracy']:.3f} (F1 {part['first_error_f1']:.3f}), ECE {part['ece']:.3f}"
    )
