"""What an evaluation returns: all that was measured and logged, and perplexity with a token loss."""

from __future__ import annotations

import math

from hftune.distributed import zero
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class EvaluationFigures(Feature):
    """Completes the metrics of an evaluation.

    Attributes:
        last: Step and metrics of the last evaluation.
    """

    def __init__(self) -> None:
        self.last: tuple[int, dict[str, float]] | None = None

    def after_evaluate(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """TRL's own metrics, which it only logs, are in the result as well."""
        zero.release_fetched(run.model_wrapped)  # a checkpoint may follow
        # The last entry of this prefix: TRL logs its own metrics with the loss, and returns only the loss.
        logged: dict[str, float] = next(
            (entry for entry in reversed(run.state.log_history) if f"{prefix}_loss" in entry), {}
        )
        metrics |= {name: value for name, value in logged.items() if name.startswith(f"{prefix}_")}
        loss = metrics.get(f"{prefix}_loss")
        if run.reports_perplexity and loss is not None:
            metrics[f"{prefix}_perplexity"] = perplexity(loss)
        self.last = (run.state.global_step, dict(metrics))

    def current(self, run: Run) -> dict[str, float] | None:
        """Metrics of the last evaluation, if it was made at this step and no better weights were loaded since."""
        step, metrics = self.last or (-1, {})
        best = run.state.best_global_step if run.args.load_best_model_at_end else None
        return dict(metrics) if step == run.state.global_step and best in (None, 0, step) else None


def perplexity(loss: float) -> float:
    """exp of a mean loss in nats a token."""
    # Above 700 nats exp leaves the range of a float; the loss itself has diverged by then.
    return math.exp(loss) if loss < 700 else math.inf
