"""Share of trained tokens whose most likely prediction is the label."""

import datasets
import evaluate
import numpy as np

IGNORED = -100


class TokenAccuracy(evaluate.Metric):
    """`predictions` and `references`: token ids, already aligned (predictions shifted); label -100 is left out."""

    def _info(self) -> evaluate.MetricInfo:
        value = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=self.__class__.__doc__,
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        labels = np.asarray(references)
        trained = labels != IGNORED
        if not trained.any():
            return {"token_accuracy": float("nan")}
        return {"token_accuracy": float((np.asarray(predictions)[trained] == labels[trained]).mean())}
