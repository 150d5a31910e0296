"""Share of pairs whose chosen answer scores higher than the rejected one."""

import datasets
import evaluate
import numpy as np


class PairwiseAccuracy(evaluate.Metric):
    """`predictions`: scores of the chosen answers; `references`: of the rejected ones. A tie counts as wrong."""

    def _info(self) -> evaluate.MetricInfo:
        value = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=self.__class__.__doc__,
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        return {"accuracy": float((np.asarray(predictions) > np.asarray(references)).mean())}
