"""What a reward model learns, and what is kept beside it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RewardFields:
    """What run_rm.py adds to TRL's `RewardConfig`."""

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
