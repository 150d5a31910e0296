"""Share of steps that are judged as they are labelled."""

import numpy as np

from hftune.trainers.pair_metric import PairMetric


class StepAccuracy(PairMetric):
    """`predictions`: probabilities that steps are right; `references`: labels from 0 to 1, 0.5 of which is left out."""

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        labels = np.asarray(references)
        sure = labels != 0.5
        if not sure.any():
            return {"step_accuracy": float("nan")}
        return {"step_accuracy": float(((np.asarray(predictions) > 0.5) == (labels > 0.5))[sure].mean())}
