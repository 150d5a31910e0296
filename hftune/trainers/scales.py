"""Scores over a whole set of records, and their mean and spread, which stay with a reward model."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset

from hftune.checkpoints.reward_scale import FIELD, RewardScale, scale_of
from hftune.logging import get_logger, notice

TRAINING_RECORDS = 500
"""As many are scored for the scale where none are held out."""


def numbered(dataset: Dataset) -> Dataset:
    """The records, longest first, with their place in that order as `index`.

    Batches of equal length waste no padding, and what does not fit into memory shows at once.
    """
    order = np.argsort([-length for length in dataset["length"][:]], kind="stable")
    return dataset.select(order).flatten_indices().add_column("index", np.arange(len(order)))


class ScaleMixin:
    """Put before a `Trainer` subclass whose `compute_metrics` leaves `report`, `all_scores` and `whole_loss`.

    Attributes:
        scored: The records that are being scored, from `numbered`.
        report: Of the last evaluation, plain values for the manifest.
        all_scores: Of the last evaluation, (scores,).
        whole_loss: Its loss over all records.
        reward_scale: Known once training is over.
    """

    scored: Any = None
    report: Any = None
    all_scores: Any = None
    whole_loss: float = float("nan")
    reward_scale: RewardScale | None = None
    _settled: tuple[int, dict[str, float]] | None = None

    def evaluation_loop(self: Any, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """As the Trainer's, with the loss over all records in place of a mean of batches' means."""
        self.scored = self._numbered_training if metric_key_prefix == "train" else self.eval_dataset
        output = super().evaluation_loop(  # type: ignore[misc]
            dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs
        )
        output.metrics[f"{metric_key_prefix}_loss"] = self.whole_loss
        return output

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the Trainer's; what `before_saving` has measured is not measured again."""
        if self._settled is not None and not args and not kwargs and self._settled[0] == self.state.global_step:
            return self._settled[1]
        metrics: dict[str, float] = super().evaluate(*args, **kwargs)  # type: ignore[misc]
        return metrics

    def before_saving(self: Any) -> None:
        """Measure the scale of the trained model's scores and store it in its config."""
        if self.eval_dataset is not None:
            metrics = self.evaluate()
            self._settled = (self.state.global_step, metrics)
            get_logger().info("%s", self.describe())
        if hasattr(self.model.config, FIELD):
            delattr(self.model.config, FIELD)  # the base's, if that was a reward model
        if not self.args.normalize_scores:
            return
        measured_on = "held-out records"
        if self.eval_dataset is None:
            self._score_training()
            measured_on = "training records"
        self.reward_scale = scale_of(self.all_scores, measured_on)
        if self.reward_scale is None:
            notice("all scores are the same, or not finite: no scale is stored with the model")
            return
        scale = self.reward_scale
        setattr(self.model.config, FIELD, scale.to_dict())
        notice(
            f"scores of {measured_on}: mean {scale.mean:.4g}, standard deviation {scale.std:.4g} over {scale.scores}; "
            "stored with the model, for RL and `hftune score`"
        )

    def figures(self: Any) -> dict[str, Any]:
        """For the manifest."""
        found = {} if self.report is None or self.eval_dataset is None else {"held_out": self.report}
        return found | ({} if self.reward_scale is None else {FIELD: self.reward_scale.to_dict()})

    def _score_training(self: Any) -> None:
        count = min(TRAINING_RECORDS, len(self.train_dataset))
        notice(f"no records are held out: the scale of scores is that of {count} training records")
        self._numbered_training = numbered(self.train_dataset.select(range(count)))
        self.predict(self._numbered_training, metric_key_prefix="train")
