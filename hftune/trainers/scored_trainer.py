"""What both reward trainers share: scores over all records of a set, and their scale, which stays with the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Dataset

from hftune.checkpoints.reward_scale import RewardScale, scale_of
from hftune.constants import REWARD_SCALE_FIELD as FIELD
from hftune.logging import get_logger, notice
from hftune.trainers.features.run import Run, say_if_nothing_learnt
from hftune.trainers.stage_trainer import StageTrainer

TRAINING_RECORDS = 500
"""As many are scored for the scale where none are held out."""


def longest_first(dataset: Dataset) -> Dataset:
    """The records, longest first, with their place in that order as `index`.

    Batches of equal length waste no padding, and what does not fit into memory shows at once.
    """
    order = np.argsort([-length for length in dataset["length"][:]], kind="stable")
    return dataset.select(order).flatten_indices().add_column("index", np.arange(len(order)))


class ScoreScale:
    """For reward models: evaluates over all records at once, and measures the scale of scores that RL wants.

    The stage's `compute_metrics` fills in `report`, `all_scores` and `whole_loss`.

    Args:
        describe: The last evaluation, in lines.

    Attributes:
        scored: The records that are being scored, from `longest_first`.
        report: Of the last evaluation, plain values for the manifest.
        all_scores: Of the last evaluation, (scores,).
        whole_loss: Its loss over all records.
        scale: Known once training is over.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self.scored: Any = None
        self.report: Any = None
        self.all_scores: Any = None
        self.whole_loss = float("nan")
        self.scale: RewardScale | None = None
        self._describe = describe
        self._training: Any = None  # the training records that are scored where none are held out
        self._known: tuple[int, dict[str, float]] | None = None  # step and metrics, measured before saving

    def begin_evaluation(self, run: Run, prefix: str) -> None:
        """`compute_metrics` looks up the records that are scored."""
        self.scored = self._training if prefix == "train" else run.eval_dataset

    def end_evaluation(self, metrics: dict[str, float], prefix: str) -> None:
        """The loss over all records in place of a mean of batches' means."""
        metrics[f"{prefix}_loss"] = self.whole_loss

    def known_evaluation(self, run: Run) -> dict[str, float] | None:
        """What was measured before saving is not measured again."""
        return self._known[1] if self._known is not None and self._known[0] == run.state.global_step else None

    def measure(self, run: Run) -> None:
        """Measure the scale of the trained model's scores and store it in its config."""
        if run.eval_dataset is not None:
            # The scores of an evaluation at the last step are still here.
            metrics = run.current_evaluation or run.evaluate()
            self._known = (run.state.global_step, metrics)
            get_logger().info("%s", self._describe())
        if hasattr(run.model.config, FIELD):
            delattr(run.model.config, FIELD)  # the base's, if that was a reward model
        if not run.args.normalize_scores:
            return
        measured_on = "held-out records"
        if run.eval_dataset is None:
            self._score_training(run)
            measured_on = "training records"
        self.scale = scale_of(self.all_scores, measured_on)
        if self.scale is None:
            notice("all scores are the same, or not finite: no scale is stored with the model")
            return
        scale = self.scale
        setattr(run.model.config, FIELD, scale.to_dict())
        notice(
            f"scores of {measured_on}: mean {scale.mean:.4g}, standard deviation {scale.std:.4g} over {scale.scores}; "
            "stored with the model, for RL and `hftune score`"
        )

    def figures(self, run: Run) -> dict[str, Any]:
        """The report of held-out records, and the scale."""
        found = {} if self.report is None or run.eval_dataset is None else {"held_out": self.report}
        return found | ({} if self.scale is None else {FIELD: self.scale.to_dict()})

    def _score_training(self, run: Run) -> None:
        count = min(TRAINING_RECORDS, len(run.train_dataset))
        notice(f"no records are held out: the scale of scores is that of {count} training records")
        self._training = longest_first(run.train_dataset.select(range(count)))
        run.predict(self._training, metric_key_prefix="train")


class ScoredTrainer(StageTrainer):
    """Put before an upstream trainer; a stage makes `scores` and fills them in its `compute_metrics`."""

    scores: ScoreScale

    def end_training(self) -> None:
        """Say whether the loss has fallen."""
        say_if_nothing_learnt(self)

    def begin_evaluation(self, prefix: str) -> None:
        """`compute_metrics` looks up the records that are scored."""
        self.scores.begin_evaluation(self, prefix)

    def end_evaluation(self, metrics: dict[str, float], prefix: str) -> None:
        """The loss over all records."""
        self.scores.end_evaluation(metrics, prefix)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Overrides `Trainer.evaluate`: what was measured before saving is not measured again."""
        # Other records, or another prefix, are another evaluation than the one whose figures are known.
        known = self.scores.known_evaluation(self)
        if known is not None and eval_dataset is None and metric_key_prefix == "eval":
            return known
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def before_saving(self) -> None:
        """Measure the scale, which is saved with the model."""
        self.scores.measure(self)
        super().before_saving()

    def figures(self) -> dict[str, Any]:
        """The report of held-out records, and the scale."""
        return self.scores.figures(self)
