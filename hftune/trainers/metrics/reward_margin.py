"""Mean difference between the scores of chosen and rejected answers."""

import numpy as np

from hftune.trainers.pair_metric import PairMetric


class RewardMargin(PairMetric):
    """`predictions`: scores of the chosen answers; `references`: of the rejected ones."""

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        return {"margin": float((np.asarray(predictions) - np.asarray(references)).mean())}
