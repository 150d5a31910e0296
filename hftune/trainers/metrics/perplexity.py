"""exp of the mean negative log-likelihood a token."""

import math

import numpy as np

from hftune.trainers.pair_metric import PairMetric


class Perplexity(PairMetric):
    """`predictions`: mean losses in nats a token; `references`: how many tokens each stands for."""

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        mean = float(np.average(predictions, weights=references))
        # Above 700 nats exp leaves the range of a float; the loss itself has diverged by then.
        return {"perplexity": math.exp(mean) if mean < 700 else float("inf")}
