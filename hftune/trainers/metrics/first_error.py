"""Whether the first wrong step of answers is found, as ProcessBench measures it (arXiv:2412.06559)."""

import numpy as np

from hftune.trainers.pair_metric import PairMetric


class FirstError(PairMetric):
    """`predictions` and `references`: the number of the first wrong step, -1 for none.

    Gives the share of answers for which both are the same, over all of them, over those with an error and over those
    without, and `f1`, the harmonic mean of the last two; NaN where there are none.
    """

    VALUE = "int64"

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        found, labels = np.asarray(predictions), np.asarray(references)
        same, wrong = found == labels, labels >= 0
        with_error = float(same[wrong].mean()) if wrong.any() else float("nan")
        without = float(same[~wrong].mean()) if (~wrong).any() else float("nan")
        total = with_error + without
        return {
            "first_error_accuracy": float(same.mean()),
            "first_error_with": with_error,
            "first_error_without": without,
            "first_error_f1": 2 * with_error * without / total if total > 0 else total,
        }
