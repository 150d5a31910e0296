"""How a reward model is trained, and what is kept alongside it."""

from __future__ import annotations

from dataclasses import dataclass, field

import trl

from hftune.arguments.lengths import PairLengths
from hftune.arguments.training import StageArguments


@dataclass
class RMArguments(StageArguments, PairLengths, trl.RewardConfig):
    """Reward model on preference pairs, or on labelled steps."""

    # Decides the head, so it must be the same for whoever loads the model: the manifest carries it.
    reward_kind: str = field(
        default="outcome",
        metadata={
            "help": "outcome: one score a conversation, from preference pairs. process: one a step of an answer, from "
            "steps that are labelled right or wrong.",
            "choices": ["outcome", "process"],
        },
    )
    score_difference: str = field(
        default="margin",
        metadata={
            "help": "What the difference of two answers' scores (or `margin`) does, where the data have it. margin: "
            "the model's scores shall lie that far apart. weight: the pair's loss is multiplied by it. none: nothing.",
            "choices": ["margin", "weight", "none"],
        },
    )
    score_difference_scale: float = field(
        default=1.0, metadata={"help": "Differences are multiplied by this first: 0.1 for scores from 1 to 10."}
    )
    label_smoothing: float = field(
        default=0.0, metadata={"help": "Share of labels that are taken to be wrong; below 0.5."}
    )
    padding_free: bool | None = field(
        default=None,
        metadata={
            "help": "Put the conversations of a batch into one row instead of padding them. Left out: where the model "
            "keeps them apart exactly."
        },
    )
    # Stored next to the weights and not folded into the head: scores of different runs stay comparable.
    normalize_scores: bool = field(
        default=True,
        metadata={
            "help": "Keep mean and standard deviation of the held-out scores with the model, for RL and `hftune score`."
            " The model's own scores stay as they are."
        },
    )
    step_separator: str = field(
        default="\n", metadata={"help": "Stands between the steps of an answer (process reward models)."}
    )
    train_on_last_step_only: bool = field(
        default=False, metadata={"help": "Learn from the last labelled step of an answer only."}
    )

    def __post_init__(self) -> None:
        self.resolve_lengths()
        # The Trainer would smooth nothing: its smoother is for losses over labels in a batch.
        self.label_smoothing = self.label_smoothing or self.label_smoothing_factor
        self.label_smoothing_factor: float = 0.0
        super().__post_init__()

    @property
    def rows_per_record(self) -> int:
        """Overrides `StageArguments.rows_per_record`: the chosen and the rejected conversation."""
        return 2

    @property
    def head(self) -> str:
        """Overrides `StageArguments.head`: a score for each conversation, or for each step."""
        return "steps" if self.reward_kind == "process" else "score"

    @property
    def flat_batches(self) -> bool:
        """Padding-free ones are."""
        return bool(self.padding_free)
