"""A trainer with features: what a stage sets and overrides of it, and what a script asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hftune.arguments.training import StageArguments
from hftune.on_demand import on_demand
from hftune.trainers.features.checkpoints import Checkpoints
from hftune.trainers.features.evaluation_figures import EvaluationFigures
from hftune.trainers.features.feature import Feature, Features
from hftune.trainers.features.order import common_features
from hftune.trainers.features.record_order import RecordOrder
from hftune.trainers.features.totals import Totals

if TYPE_CHECKING:
    from transformers import Trainer as Base
else:
    Base = object


class FeatureHost(Base):
    """All of `StageTrainer` but its overrides of upstream methods.

    Attributes:
        features: In their order.
        record_order: Draws the records; a stage gives it the mixture of its sources.
        checkpoints: Writes them; a script gives it the manifest.
    """

    features: Features
    record_order: RecordOrder
    checkpoints: Checkpoints

    reports_perplexity = False
    """Whether the stage's loss is a mean over tokens."""

    extra_columns: tuple[str, ...] = ()
    """Columns of records, in addition to those of the model, that the stage's collator reads."""

    sequence_group: Any = None
    """The processes that share rows with this one, a `SequenceGroup`; None without sequence parallelism."""

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """All features, in the order of their effects; stages put theirs before or behind the common ones."""
        return common_features(args, model)

    def prove_isolation(self, model: Any) -> None:
        """Show that documents in a row do not see each other.

        Raises:
            ArgumentError: They do.
        """
        # Only runs whose documents share rows come here, and the proof brings modules of its own.
        on_demand("hftune.trainers.packing_isolation:prove_rows_isolated")(self, model)

    # What a script asks a trainer.

    @property
    def current_evaluation(self) -> dict[str, float] | None:
        """Metrics of the last evaluation, where it measured the weights that are there after training."""
        return self.features.one(EvaluationFigures).current(self)

    @property
    def train_seconds(self) -> float:
        """Seconds of training so far, those before an interruption included."""
        return self.features.one(Totals).seconds()

    def count_trained_tokens(self) -> int | None:
        """Tokens with a loss so far, where that is known; every rank must ask."""
        return self.features.first_answer(Feature.trained_tokens, self)

    def before_saving(self) -> None:
        """Training is over: measure what is saved with the model."""
        self.features.call(Feature.before_result, self)

    def figures(self) -> dict[str, Any]:
        """What features add to the manifest."""
        return self.features.merged(Feature.figures, self)
