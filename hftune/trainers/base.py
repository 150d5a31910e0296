"""What hftune's trainers share beyond the trainers they extend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hftune.trainers.metrics import load_metric


class HftuneTrainerMixin:
    """Put before a `Trainer` subclass: evaluation returns all that it measured, and perplexity beside a token loss."""

    reports_perplexity = False

    def evaluate(self: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """As `Trainer.evaluate`; TRL's own metrics, which it only logs, are in the result as well."""
        parent: Callable[..., dict[str, float]] = super().evaluate  # type: ignore[misc]
        metrics = parent(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        logged: dict[str, float] = next(
            (entry for entry in reversed(self.state.log_history) if f"{metric_key_prefix}_loss" in entry), {}
        )
        metrics |= {name: value for name, value in logged.items() if name.startswith(f"{metric_key_prefix}_")}
        loss = metrics.get(f"{metric_key_prefix}_loss")
        if self.reports_perplexity and loss is not None:
            metrics |= {
                f"{metric_key_prefix}_{name}": value
                for name, value in load_metric("perplexity").compute(predictions=[loss], references=[1.0]).items()
            }
        return metrics

    def _set_signature_columns_if_needed(self: Any) -> None:
        """Keep the column of lengths: the Trainer drops it as unused before its length sampler asks for it."""
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        if self.args.length_column_name not in self._signature_columns:
            self._signature_columns.append(self.args.length_column_name)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the manifest is the record of a run, and a card is written from it."""
