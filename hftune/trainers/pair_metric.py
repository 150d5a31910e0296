"""What the metrics share: a prediction and a reference for each row."""

import sys
from typing import ClassVar

import datasets
import evaluate


class PairMetric(evaluate.Metric):
    """A metric of `predictions` and `references`, which are numbers of the kind `VALUE`."""

    VALUE: ClassVar[str] = "float64"

    def _info(self) -> evaluate.MetricInfo:
        value = datasets.Value(self.VALUE)
        return evaluate.MetricInfo(
            description=sys.modules[type(self).__module__].__doc__ or "",
            citation="",
            inputs_description=type(self).__doc__ or "",
            features=datasets.Features({"predictions": value, "references": value}),
        )
