"""Metrics as `evaluate` has them, imported like all code of hftune.

`evaluate.load` would copy a module's code to a cache that others may write to and run it from there; one of the Hub
would be downloaded code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import evaluate

METRICS = {
    "calibration_error": "CalibrationError",
    "first_error": "FirstError",
    "pairwise_accuracy": "PairwiseAccuracy",
    "perplexity": "Perplexity",
    "reward_margin": "RewardMargin",
    "step_accuracy": "StepAccuracy",
    "token_accuracy": "TokenAccuracy",
}
"""Modules beside this file, and their classes."""


def load_metric(name: str) -> evaluate.Metric:
    """The metric of the module `name`, one of `METRICS`. It keeps what it is given in memory, and writes no file."""
    # Imported here: `evaluate` is heavy, and only needed where there is something to evaluate.
    module = import_module(f"hftune.trainers.metrics.{name}")
    metric: evaluate.Metric = getattr(module, METRICS[name])(keep_in_memory=True)
    return metric
