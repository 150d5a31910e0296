"""What an evaluation returns: all that was measured and logged, and perplexity with a token loss."""

from __future__ import annotations

from hftune.distributed import zero
from hftune.trainers.features.feature import Feature, Run
from hftune.trainers.metrics import perplexity


class EvaluationFigures(Feature):
    """Completes the metrics of an evaluation.

    Args:
        perplexity: Whether the loss is a mean over tokens, whose exponential is the perplexity.

    Attributes:
        last: Step and metrics of the last evaluation.
    """

    def __init__(self, *, perplexity: bool) -> None:
        self.perplexity = perplexity
        self.last: tuple[int, dict[str, float]] | None = None

    def after_evaluate(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """TRL's own metrics, which it only logs, are in the result as well."""
        zero.release_fetched(run.model_wrapped)  # a checkpoint may follow
        logged: dict[str, float] = next(
            (entry for entry in reversed(run.state.log_history) if f"{prefix}_loss" in entry), {}
        )
        metrics |= {name: value for name, value in logged.items() if name.startswith(f"{prefix}_")}
        loss = metrics.get(f"{prefix}_loss")
        if self.perplexity and loss is not None:
            metrics[f"{prefix}_perplexity"] = perplexity(loss)
        self.last = (run.state.global_step, dict(metrics))
