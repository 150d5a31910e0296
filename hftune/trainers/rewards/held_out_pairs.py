"""What held-out scores say of a reward model: figures over all records and of each source, and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hftune.trainers.rewards.metrics import calibration_error

ECE_BINS = 10
"""Of equal width, over confidences from 0.5 to 1."""
HISTOGRAM_BINS = 20
_BLOCKS = " ▁▂▃▄▅▆▇█"


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
        "ece": calibration_error(wins, np.ones_like(wins), ECE_BINS),
        "mean_reward": float(scores.mean()),
        "std_reward": float(scores.std()),
    }


def pair_report(scores: np.ndarray, sources: Sequence[str]) -> dict[str, Any]:
    """The figures of all pairs and of each source, with histograms over the same bins.

    Args:
        scores: (pairs, 2), chosen and rejected.
        sources: One a pair.

    Returns:
        Plain values: pairs, the figures, ece_bins, edges (the borders of the histograms' bins), by_source.
    """
    # The same bins for all sources, so that their histograms can be compared.
    edges = histogram_edges(scores)
    by_source = {}
    for source in sorted(set(sources)):
        part = scores[np.array([name == source for name in sources])]
        histograms = {side: counts(part[:, column], edges) for column, side in enumerate(("chosen", "rejected"))}
        by_source[source] = {"pairs": len(part), **pair_figures(part), **histograms}
    whole = {"pairs": len(scores), **pair_figures(scores), "ece_bins": ECE_BINS}
    return whole | {"edges": edges.tolist(), "by_source": by_source}


def histogram_edges(scores: np.ndarray) -> np.ndarray:
    """The borders of `HISTOGRAM_BINS` bins from the lowest to the highest score."""
    return np.histogram_bin_edges(scores[np.isfinite(scores)], bins=HISTOGRAM_BINS)


def counts(scores: np.ndarray, edges: np.ndarray) -> list[int]:
    """How many scores lie in each bin."""
    return [int(count) for count in np.histogram(scores, bins=edges)[0]]


def describe_pairs(report: dict[str, Any]) -> str:
    """The report as lines of text, a block a bin."""
    edges = report["edges"]
    lines = [
        f"held out: accuracy {report['accuracy']:.3f}, margin {report['margin']:.3f}, ECE {report['ece']:.3f} "
        f"({report['ece_bins']} bins), {report['pairs']} pairs; scores from {edges[0]:.2f} to {edges[-1]:.2f}:"
    ]
    width = max(map(len, report["by_source"]))
    for source, part in report["by_source"].items():
        if len(report["by_source"]) > 1:  # of a single one the line above says it
            lines.append(
                f"  {source:{width}}  {part['pairs']:6} pairs, accuracy {part['accuracy']:.3f}, "
                f"margin {part['margin']:.3f}, ECE {part['ece']:.3f}"
            )
        lines += [f"  {'':{width}}    {side:8} |{bars(part[side])}|" for side in ("chosen", "rejected")]
    return "\n".join(lines)


def bars(histogram: Sequence[int]) -> str:
    """A block a bin; any count above 0 is seen."""
    most = max(*histogram, 1)
    return "".join(_BLOCKS[-(-count * (len(_BLOCKS) - 1) // most)] for count in histogram)
