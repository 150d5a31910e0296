"""Mean difference between the scores of chosen and rejected answers."""

import datasets
import evaluate
import numpy as np


class RewardMargin(evaluate.Metric):
    """`predictions`: scores of the chosen answers; `references`: of the rejected ones."""

    def _info(self) -> evaluate.MetricInfo:
        value = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=self.__class__.__doc__,
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        return {"margin": float((np.asarray(predictions) - np.asarray(references)).mean())}
