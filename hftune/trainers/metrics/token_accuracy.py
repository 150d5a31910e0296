"""Share of trained tokens whose most likely prediction is the label."""

import numpy as np

from hftune.trainers.pair_metric import PairMetric

IGNORED = -100


class TokenAccuracy(PairMetric):
    """`predictions` and `references`: token ids, already aligned (predictions shifted); label -100 is left out."""

    VALUE = "int64"

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        labels = np.asarray(references)
        trained = labels != IGNORED
        if not trained.any():
            return {"token_accuracy": float("nan")}
        return {"token_accuracy": float((np.asarray(predictions)[trained] == labels[trained]).mean())}
