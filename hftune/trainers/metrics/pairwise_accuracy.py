"""Share of pairs whose chosen answer scores higher than the rejected one."""

import numpy as np

from hftune.trainers.pair_metric import PairMetric


class PairwiseAccuracy(PairMetric):
    """`predictions`: scores of the chosen answers; `references`: of the rejected ones. A tie counts as wrong."""

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        return {"accuracy": float((np.asarray(predictions) > np.asarray(references)).mean())}
