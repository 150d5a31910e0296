"""What both reward trainers share: scores over all records of a set, and their scale, which stays with the model."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset
from peft import PeftModel
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.preference import RMArguments
from hftune.checkpoints.reward_scale import RewardScale, scale_of
from hftune.constants import REWARD_SCALE_FIELD as FIELD
from hftune.data.splits import Splits
from hftune.logging import get_logger, notice
from hftune.trainers.features.run import say_if_nothing_learnt
from hftune.trainers.rewards.held_out import describe
from hftune.trainers.stage_trainer import StageTrainer

TRAINING_RECORDS = 500
"""As many are scored for the scale where none are held out."""


def longest_first(dataset: Dataset) -> Dataset:
    """The records, longest first, with their place in that order as `index`.

    Batches of equal length waste no padding, and what does not fit into memory shows at once.
    """
    order = np.argsort([-length for length in dataset["length"][:]], kind="stable")
    return dataset.select(order).flatten_indices().add_column("index", np.arange(len(order)))


class ScoredTrainer(StageTrainer):
    """Put before an upstream trainer: evaluates over all records at once, and measures the scale that RL wants.

    A stage's `score_figures` fills in `report`, `all_scores` and `whole_loss`.

    Args:
        collator: Of the stage.

    Attributes:
        scored: The records that are being scored, from `longest_first`.
        report: Of the last evaluation, plain values for the manifest.
        all_scores: Of the last evaluation, (scores,).
        whole_loss: Its loss over all records.
        scale: Known once training is over.
    """

    scored: Any = None
    report: Any = None
    all_scores: Any = None
    whole_loss = float("nan")
    scale: RewardScale | None = None
    _training: Any = None  # the training records that are scored where none are held out
    _known: tuple[int, dict[str, float]] | None = None  # step and metrics, measured before saving

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: RMArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        collator: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            train_dataset=data.train,
            eval_dataset=None if data.evaluation is None else longest_first(data.evaluation),
            data_collator=collator,
            compute_metrics=self.score_figures,
            **kwargs,
        )
        # A step's losses are divided by what is counted over accumulated batches and processes.
        self.model_accepts_loss_kwargs = True
        self.mixture = data.mixture

    def score_figures(self, prediction: EvalPrediction) -> dict[str, float]:
        """Figures over all held-out records; the report of them is kept for the manifest."""
        raise NotImplementedError

    def describe(self) -> str:
        """The last evaluation, in lines."""
        return describe(self.report)

    def end_training(self) -> None:
        """Say whether the loss has fallen."""
        say_if_nothing_learnt(self)

    def begin_evaluation(self, prefix: str) -> None:
        """`score_figures` looks up the records that are scored."""
        self.scored = self._training if prefix == "train" else self.eval_dataset

    def end_evaluation(self, metrics: dict[str, float], prefix: str) -> None:
        """The loss over all records in place of a mean of batches' means."""
        metrics[f"{prefix}_loss"] = self.whole_loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Overrides `Trainer.evaluate`: what was measured before saving is not measured again."""
        known = self._known is not None and self._known[0] == self.state.global_step
        # Other records, or another prefix, are another evaluation than the one whose figures are known.
        if known and self._known is not None and eval_dataset is None and metric_key_prefix == "eval":
            return self._known[1]
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def before_saving(self) -> None:
        """Measure the scale of the trained model's scores and store it in its config."""
        if self.eval_dataset is not None:
            # The scores of an evaluation at the last step are still here.
            self._known = (self.state.global_step, self.current_evaluation or self.evaluate())
            get_logger().info("%s", self.describe())
        if hasattr(self.model.config, FIELD):
            delattr(self.model.config, FIELD)  # the base's, if that was a reward model
        if self.args.normalize_scores:
            self._measure_scale()
        super().before_saving()

    def figures(self) -> dict[str, Any]:
        """The report of held-out records, and the scale."""
        found = {} if self.report is None or self.eval_dataset is None else {"held_out": self.report}
        return found | ({} if self.scale is None else {FIELD: self.scale.to_dict()})

    def _measure_scale(self) -> None:
        if self.eval_dataset is None:
            self._score_training()
        measured_on = "training records" if self.eval_dataset is None else "held-out records"
        self.scale = scale = scale_of(self.all_scores, measured_on)
        if scale is None:
            notice("all scores are the same, or not finite: no scale is stored with the model")
            return
        setattr(self.model.config, FIELD, scale.to_dict())
        notice(
            f"scores of {measured_on}: mean {scale.mean:.4g}, standard deviation {scale.std:.4g} over {scale.scores}; "
            "stored with the model, for RL and `hftune score`"
        )

    def _score_training(self) -> None:
        count = min(TRAINING_RECORDS, len(self.train_dataset))
        notice(f"no records are held out: the scale of scores is that of {count} training records")
        self._training = longest_first(self.train_dataset.select(range(count)))
        self.predict(self._training, metric_key_prefix="train")
