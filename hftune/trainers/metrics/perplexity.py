"""exp of the mean negative log-likelihood a token."""

import math

import datasets
import evaluate
import numpy as np


class Perplexity(evaluate.Metric):
    """`predictions`: mean losses in nats a token; `references`: how many tokens each stands for."""

    def _info(self) -> evaluate.MetricInfo:
        value = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=self.__class__.__doc__,
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        mean = float(np.average(predictions, weights=references))
        # Above 700 nats exp leaves the range of a float; the loss itself has diverged by then.
        return {"perplexity": math.exp(mean) if mean < 700 else float("inf")}
