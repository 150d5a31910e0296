"""Expected calibration error of probabilities: how far a stated confidence is from the share that is right."""

import numpy as np

from hftune.trainers.pair_metric import PairMetric


class CalibrationError(PairMetric):
    """`predictions`: probabilities of an outcome; `references`: 1 where it came, 0 where not.

    A prediction is "yes" above 0.5 and its confidence max(p, 1 - p), from 0.5 to 1. Over `bins` bins of equal width of
    that range: sum of (share of predictions in the bin) x |share that is right - mean confidence| (Guo et al. 2017,
    arXiv:1706.04599, equation 3). A prediction of exactly 0.5 is half right.
    """

    def _compute(self, predictions: list[float], references: list[float], bins: int = 10) -> dict[str, float]:
        probability, came = np.asarray(predictions), np.asarray(references)
        confidence = np.maximum(probability, 1 - probability)
        right = np.where(probability == 0.5, 0.5, (probability > 0.5) == (came > 0.5))
        number = np.minimum((2 * (confidence - 0.5) * bins).astype(int), bins - 1)
        gaps = np.bincount(number, weights=right - confidence, minlength=bins)
        return {"ece": float(np.abs(gaps).sum() / len(probability))}
