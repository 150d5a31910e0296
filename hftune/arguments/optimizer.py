"""How weights are updated: optimizer, learning rates of groups, and the schedule of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from hftune.arguments.option import option
from hftune.logging import notice

MUON = "muon"

OPTIMIZERS = [MUON, *(entry.value for entry in OptimizerNames)]
SCHEDULES = [entry.value for entry in SchedulerType]


@dataclass
class OptimizerArguments:
    """What hftune adds to the optimizer and schedule fields of `TrainingArguments`, which it is mixed into."""

    # The same: `muon` is no member of transformers' enum.
    optim: str = option(
        TrainingArguments.default_optim,
        f"The optimizer: muon, or one of transformers': {', '.join(OPTIMIZERS[1:])}.",
        choices=OPTIMIZERS,
        metavar="NAME",
    )
    # A text, where transformers has an enum: argparse would show its members, and refuse Megatron's words.
    lr_scheduler_type: str = option(
        "linear", f"The schedule: {', '.join(SCHEDULES)}.", choices=SCHEDULES, metavar="NAME"
    )
    loraplus_lr_ratio: float | None = option(
        None, "LoRA+ (arXiv:2402.12354): learning rate of B over that of A, which is --learning_rate."
    )
    loraplus_lr_embedding: float | None = option(
        None, "LoRA+: learning rate of adapters on embeddings; left out: 1e-6, as in peft."
    )
    layerwise_lr_decay_bound: float = option(
        1.0,
        "Learning rate of the embeddings as a share of --learning_rate; it grows linearly with the depth "
        "up to the full rate at the final norm and head (ERNIEKit). 1: the same rate everywhere.",
    )
    min_lr: float | None = option(
        None, "Learning rate that the schedule ends at; groups with a rate of their own: in proportion."
    )
    lr_decay_steps: int | None = option(
        None,
        "Step at which the schedule has ended, warm-up included; the rate stays there. Left out: the last "
        "step of training. A --warmup_steps below 1 is a share of this.",
    )
    num_cycles: float | None = option(
        None, "Waves of cosine (left out: 0.5, half a wave down), restarts of cosine_with_restarts (1)."
    )
    lr_end: float | None = option(None, "Learning rate that polynomial ends at; left out: --min_lr, else 1e-7.")
    power: float | None = option(None, "Exponent of polynomial; left out: 1.")
    lr_wsd_decay_steps: float | None = option(
        None, "Steps of decay that end warmup_stable_decay, below 1 a share; left out: a tenth."
    )
    lr_wsd_decay_style: str = option(
        "linear",
        "How warmup_stable_decay decays.",
        choices=["linear", "cosine", "1-sqrt", "exponential"],
    )
    sgd_momentum: float | None = option(None, "Momentum of --optim sgd; left out: none.")
    muon_momentum: float = option(0.95, "Momentum of --optim muon (Nesterov's).")
    muon_scale_mode: str = option(
        "spectral",
        "Factor on the orthogonal update of an (out, in) matrix. spectral: sqrt(max(out, in)); "
        "shape_scaling: sqrt(max(1, out/in)); unit_rms_norm: sqrt(out/in).",
        choices=["spectral", "shape_scaling", "unit_rms_norm"],
    )
    # Moonlight's 0.2 brings the update's RMS to that of AdamW, so that rates and weight decay carry over.
    muon_extra_scale_factor: float = option(
        0.2, "Further factor; 0.2 with spectral lets Muon use AdamW's rates (arXiv:2502.16982)."
    )

    if TYPE_CHECKING:  # what the TrainingArguments alongside this class bring

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        optim = self.optim_name
        self.lr_scheduler_type = self.schedule
        # Schedule-free optimizers warm up by themselves.
        if self.lr_scheduler_type == "constant" and self.warmup_steps and not optim.startswith("schedule_free"):
            notice("--lr_scheduler_type constant with --warmup_steps is constant_with_warmup")
            self.lr_scheduler_type = SchedulerType.CONSTANT_WITH_WARMUP.value
        if self.loraplus_lr_ratio == 1 and self.loraplus_lr_embedding is None:
            self.loraplus_lr_ratio = None  # ERNIEKit's way of saying that there is none
        self._take_sgd_momentum(optim)
        # transformers does not know Muon, and would refuse its name.
        self.optim = OptimizerNames.ADAMW_TORCH.value if optim == MUON else optim
        # TrainingArguments checks the schedule's and the optimizer's names here: both must be its own by now.
        super().__post_init__()  # type: ignore[misc] # that of the config which it is mixed into
        if optim == MUON:
            self.optim = MUON

    def _take_sgd_momentum(self, optim: str) -> None:
        if self.sgd_momentum is not None and optim == OptimizerNames.SGD:
            given = self.optim_args or ""
            # --optim_args may say it too; what was given by name counts.
            others = [part for part in given.split(",") if part and not part.startswith("momentum=")]
            self.optim_args: str | None = ",".join([*others, f"momentum={self.sgd_momentum}"])

    @property
    def schedule(self) -> str:
        """The schedule under transformers' name."""
        return str(getattr(self.lr_scheduler_type, "value", self.lr_scheduler_type))

    @property
    def optim_name(self) -> str:
        """The optimizer under transformers' name, or "muon"."""
        # Before `__post_init__` a text, after transformers' an enum.
        return str(getattr(self.optim, "value", self.optim))


@dataclass
class FreezingArguments:
    """Megatron-SWIFT's names, and LLaMA-Factory's of freeze tuning. What is named as trainable wins."""

    freeze_parameters: list[str] | None = option(
        None, "Leave parameters as they are whose names begin so: model.embed_tokens."
    )
    freeze_parameters_regex: str | None = option(None, "Leave parameters as they are in whose names this is found.")
    # A share of the elements, not of the layers, as Megatron-SWIFT counts.
    freeze_parameters_ratio: float = option(
        0.0,
        "Leave the first parameters as they are, from the embeddings up: as many as fit into this share of "
        "all elements; 1 for all.",
    )
    trainable_parameters: list[str] | None = option(
        None,
        "Train parameters whose names begin so, though they are frozen otherwise. With an adapter: modules "
        "of the base that are trained in full and saved with it.",
    )
    trainable_parameters_regex: str | None = option(None, "Train parameters in whose names this is found, likewise.")

    def __post_init__(self) -> None:
        # `a,b` and `a b` mean the same, as for the modules of an adapter.
        for name in ("freeze_parameters", "trainable_parameters"):
            if getattr(self, name):
                setattr(self, name, split_commas(getattr(self, name)))

    @property
    def freezes(self) -> bool:
        """Whether a flag leaves some parameters as they are."""
        by_name = bool(self.freeze_parameters or self.freeze_parameters_regex)
        return by_name or self.freeze_parameters_ratio > 0

    @property
    def unfreezes(self) -> bool:
        """Whether a flag names parameters to train."""
        return bool(self.trainable_parameters or self.trainable_parameters_regex)


def split_commas(names: list[str] | str) -> list[str]:
    """Several names, however they were separated: `["a,b", "c"]` as `["a", "b", "c"]`."""
    listed = [names] if isinstance(names, str) else names
    return [name.strip() for entry in listed for name in entry.split(",") if name.strip()]
