"""How preferences are trained, as pairs of answers or one by one, and how reward models are: losses and lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import trl

from hftune.arguments.data import ThoughtFields
from hftune.arguments.option import option
from hftune.arguments.training import StageArguments
from hftune.checks import refuse
from hftune.losses.preference import LOSSES, losses_with

# MedicalGPT's RM scripts bound the sum; its DPO script bounds characters by a number of tokens.
EACH, SUM, CHARACTERS = "each", "sum", "sum_of_characters"
CUT, CUT_PROMPT, CUT_ANSWER, DROP = "cut", "cut_prompt", "cut_answer", "drop"


@dataclass
class PairLengths:
    """Mixed into arguments that have a `max_length`."""

    max_prompt_length: int | None = option(
        None, "Tokens of the prompt that are kept, its end; left out: bound by max_length."
    )
    max_completion_length: int | None = option(
        None, "Tokens of an answer that are kept, its start; left out: bound by max_length."
    )
    length_budget: str = option(
        EACH,
        "each: --max_prompt_length and --max_completion_length bound prompt and answer apart. sum: their "
        "sum bounds both together. sum_of_characters: their sum is also the most characters of a prompt with an "
        "answer, longer records are dropped (MedicalGPT's DPO).",
        choices=[EACH, SUM, CHARACTERS],
    )
    too_long: str = option(
        CUT,
        "What becomes of a record beyond its lengths. cut: the prompt loses its start, down to half of "
        "max_length, then an answer its end. cut_prompt, cut_answer: that alone, and what does not fit then is "
        "dropped. drop: the record is left out. Each is counted.",
        choices=[CUT, CUT_PROMPT, CUT_ANSWER, DROP],
    )

    def resolve_lengths(self) -> None:
        """Make `max_length` the sum of both lengths where both are given.

        Raises:
            ArgumentError: A sum of one length, or characters that nothing is dropped for.
        """
        if self.max_prompt_length is not None and self.max_completion_length is not None:
            # What TRL and the collators read; a --max_length that was given as well would contradict both parts.
            self.max_length = self.max_prompt_length + self.max_completion_length
        refuse(__package__, "lengths", self)

    @property
    def separate_limits(self) -> tuple[int | None, int | None]:
        """Tokens of a prompt and of an answer, where each has a limit of its own."""
        return (self.max_prompt_length, self.max_completion_length) if self.length_budget == EACH else (None, None)

    @property
    def most_characters(self) -> int | None:
        """Characters of a prompt with an answer, where these are counted."""
        return self.max_length if self.length_budget == CHARACTERS else None


@dataclass
class RMArguments(StageArguments, PairLengths, trl.RewardConfig):
    """Reward model on preference pairs, or on labelled steps."""

    rows_per_record: ClassVar[int] = 2
    # Decides the head, so it must be the same for whoever loads the model: the manifest carries it.
    reward_kind: str = option(
        "outcome",
        "outcome: one score a conversation, from preference pairs. process: one a step of an answer, from "
        "steps that are labelled right or wrong.",
        choices=["outcome", "process"],
    )
    score_difference: str = option(
        "margin",
        "What the difference of two answers' scores (or `margin`) does, where the data have it. margin: "
        "the model's scores shall lie that far apart. weight: the pair's loss is multiplied by it. none: nothing.",
        choices=["margin", "weight", "none"],
    )
    score_difference_scale: float = option(
        1.0, "Differences are multiplied by this first: 0.1 for scores from 1 to 10."
    )
    label_smoothing: float = option(0.0, "Share of labels that are taken to be wrong; below 0.5.")
    padding_free: bool | None = option(
        None,
        "Put the conversations of a batch into one row instead of padding them. Left out: where the model "
        "keeps them apart exactly.",
    )
    # Stored next to the weights and not folded into the head: scores of different runs stay comparable.
    normalize_scores: bool = option(
        True,
        "Keep mean and standard deviation of the held-out scores with the model, for RL and `hftune score`."
        " The model's own scores stay as they are.",
    )
    step_separator: str = option("\n", "Stands between the steps of an answer (process reward models).")
    train_on_last_step_only: bool = option(False, "Learn from the last labelled step of an answer only.")

    def __post_init__(self) -> None:
        self.resolve_lengths()
        # The Trainer would smooth nothing: its smoother is for losses over labels in a batch.
        self.label_smoothing = self.label_smoothing or self.label_smoothing_factor
        self.label_smoothing_factor: float = 0.0
        super().__post_init__()

    @property
    def head(self) -> str:
        """Overrides `StageArguments.head`: a score for each conversation, or for each step."""
        return "steps" if self.reward_kind == "process" else "score"

    @property
    def flat_batches(self) -> bool:
        """Padding-free ones are."""
        return bool(self.padding_free)


@dataclass
class DPOArguments(StageArguments, ThoughtFields, PairLengths, trl.DPOConfig):
    """Preference optimisation on pairs, or on answers with a label (KTO)."""

    rows_per_record: ClassVar[int] = 2
    loss_type: list[str] = option(
        ["sigmoid"], f"One loss or several, with --loss_weights: {', '.join(sorted(LOSSES))}."
    )
    label_smoothing: float = option(
        0.0, "Probability that a pair is the wrong way round (cDPO, robust DPO), or EXO's epsilon."
    )
    simpo_gamma: float = option(0.5, "SimPO's target margin gamma: the paper's, not its ratio to beta.")
    cpo_alpha: float = option(1.0, "Weight of the SFT loss in cpo and cpo_simpo.")
    dpop_lambda: float = option(50.0, "Weight of DPO-Positive's penalty on chosen answers that become less likely.")
    offset_alpha: float = option(
        0.0, "Ask for more between answers whose scores differ more: beta z - alpha log(difference)."
    )
    normalize_logps: bool = option(
        False, "Scale log-probabilities by the mean length of a pair's answers over an answer's own."
    )
    desirable_weight: float = option(1.0, "Weight of good answers in KTO.")
    undesirable_weight: float = option(1.0, "Weight of bad answers in KTO.")
    reference_free: bool = option(False, "Take a uniform reference: log-probabilities of 0 for every answer.")
    ref_model: str | None = option(
        None, "Another model as reference, folder or Hub name; left out: the policy at the start."
    )
    ref_adapters: list[str] | None = option(None, "Adapters that are merged into the reference, in this order.")
    # None: it depends on whether there is an adapter and how often a record is seen.
    precompute_ref_log_probs: bool | None = option(
        None,
        "Compute the reference once, before training, and keep it in the cache. Left out: yes in full "
        "training, which then needs no second model; with an adapter where records are seen more than once.",
    )
    padding_free: bool | None = option(
        None, "Put the pairs of a batch into one row instead of padding them; left out: where exact."
    )
    shared_prompts: bool | None = option(
        None, "Compute the prompt of a pair once, for both answers; left out: where exact."
    )

    def __post_init__(self) -> None:
        self.resolve_lengths()
        super().__post_init__()

    @property
    def flat_batches(self) -> bool:
        """Overrides `StageArguments.flat_batches`: padding-free ones are."""
        return bool(self.padding_free)

    @property
    def keeps_reference(self) -> bool:
        """Overrides `StageArguments.keeps_reference`: not where it was computed before training."""
        again = self.sync_ref_model or self.precompute_ref_log_probs is False
        return self.needs_reference and again

    @property
    def needs_reference(self) -> bool:
        """Whether a loss looks at a reference model."""
        return not self.reference_free and bool(set(self.loss_type) - losses_with("reference", False))

    @property
    def other_reference(self) -> bool:
        """Whether the reference is another model than the policy at the start."""
        return bool(self.ref_model or self.ref_adapters)

    @property
    def unpaired(self) -> bool:
        """Whether the losses are those of single answers with a label."""
        return set(self.loss_type) <= losses_with("unpaired")
