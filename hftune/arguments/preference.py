"""How preference optimisation trains."""

from __future__ import annotations

from dataclasses import dataclass, field

import trl

from hftune.arguments.choices import UNPAIRED
from hftune.arguments.data import ThoughtFields
from hftune.arguments.lengths import PairLengths
from hftune.arguments.training import StageArguments

# The constant that an f-divergence adds is the same for both answers of a pair; in a loss of single answers it would
# stay.
DIFFERENCES_OF_SCORES = frozenset(["sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop", "dpop"])
"""Losses that an f-divergence other than the reverse KL has a meaning for: its constant cancels in them."""

REFERENCE_FREE = frozenset(["sft", "simpo", "cpo", "cpo_simpo", "odds_ratio", "orpo"])
"""Losses that look at the policy alone."""

A_TOKEN = frozenset(["ipo", "sigmoid_norm", "simpo", "cpo_simpo", "odds_ratio", "orpo"])
"""Losses that divide by the length of an answer."""

# So their value depends on which rows share a batch: accumulation and world size change it.
SORTED = frozenset(("aot", "aot_unpaired"))
"""Losses that sort the answers of a batch."""

LOSS_TYPES = DIFFERENCES_OF_SCORES | REFERENCE_FREE | SORTED | UNPAIRED
LOSS_TYPES |= {"nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "kto_pair"}


@dataclass
class DPOArguments(StageArguments, ThoughtFields, PairLengths, trl.DPOConfig):
    """Preference optimisation on pairs, or on answers with a label (KTO)."""

    loss_type: list[str] = field(
        default_factory=lambda: ["sigmoid"],
        metadata={"help": f"One loss or several, with --loss_weights: {', '.join(sorted(LOSS_TYPES))}."},
    )
    label_smoothing: float = field(
        default=0.0,
        metadata={"help": "Probability that a pair is the wrong way round (cDPO, robust DPO), or EXO's epsilon."},
    )
    simpo_gamma: float = field(
        default=0.5, metadata={"help": "SimPO's target margin gamma: the paper's, not its ratio to beta."}
    )
    cpo_alpha: float = field(default=1.0, metadata={"help": "Weight of the SFT loss in cpo and cpo_simpo."})
    dpop_lambda: float = field(
        default=50.0, metadata={"help": "Weight of DPO-Positive's penalty on chosen answers that become less likely."}
    )
    offset_alpha: float = field(
        default=0.0,
        metadata={"help": "Ask for more between answers whose scores differ more: beta z - alpha log(difference)."},
    )
    normalize_logps: bool = field(
        default=False,
        metadata={"help": "Scale log-probabilities by the mean length of a pair's answers over an answer's own."},
    )
    desirable_weight: float = field(default=1.0, metadata={"help": "Weight of good answers in KTO."})
    undesirable_weight: float = field(default=1.0, metadata={"help": "Weight of bad answers in KTO."})
    reference_free: bool = field(
        default=False, metadata={"help": "Take a uniform reference: log-probabilities of 0 for every answer."}
    )
    ref_model: str | None = field(
        default=None,
        metadata={"help": "Another model as reference, folder or Hub name; left out: the policy at the start."},
    )
    ref_adapters: list[str] | None = field(
        default=None, metadata={"help": "Adapters that are merged into the reference, in this order."}
    )
    # None: it depends on whether there is an adapter and how often a record is seen.
    precompute_ref_log_probs: bool | None = field(
        default=None,
        metadata={
            "help": "Compute the reference once, before training, and keep it in the cache. Left out: yes in full "
            "training, which then needs no second model; with an adapter where records are seen more than once."
        },
    )
    padding_free: bool | None = field(
        default=None,
        metadata={"help": "Put the pairs of a batch into one row instead of padding them; left out: where exact."},
    )
    shared_prompts: bool | None = field(
        default=None,
        metadata={"help": "Compute the prompt of a pair once, for both answers; left out: where exact."},
    )

    def __post_init__(self) -> None:
        self.resolve_lengths()
        super().__post_init__()

    @property
    def flat_batches(self) -> bool:
        """Overrides `StageArguments.flat_batches`: padding-free ones are."""
        return bool(self.padding_free)

    @property
    def rows_per_record(self) -> int:
        """Overrides `StageArguments.rows_per_record`: the chosen and the rejected answer."""
        return 2

    @property
    def keeps_reference(self) -> bool:
        """Overrides `StageArguments.keeps_reference`: not where it was computed before training."""
        again = self.sync_ref_model or self.precompute_ref_log_probs is False
        return self.needs_reference and again

    @property
    def needs_reference(self) -> bool:
        """Whether a loss looks at a reference model."""
        return not self.reference_free and bool(set(self.loss_type) - REFERENCE_FREE)

    @property
    def other_reference(self) -> bool:
        """Whether the reference is another model than the policy at the start."""
        return bool(self.ref_model or self.ref_adapters)

    @property
    def unpaired(self) -> bool:
        """Whether the losses are those of single answers with a label."""
        return set(self.loss_type) <= UNPAIRED
