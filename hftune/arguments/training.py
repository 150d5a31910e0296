"""How a stage trains: one class a stage, each on the config of the trainer that it extends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import trl
from transformers import TrainingArguments

from hftune.arguments.computation import ComputationFields
from hftune.arguments.data import ThoughtFields, TurnTokenFields
from hftune.arguments.model import HubFields
from hftune.arguments.optimizer import OptimizerArguments
from hftune.arguments.option import option
from hftune.arguments.raw_arguments import GIVEN_NAMES
from hftune.arguments.recomputation import RecomputationFields
from hftune.checks import refuse
from hftune.distributed import ds_config, launch, ranks
from hftune.on_demand import on_demand
from hftune.secrets import redacted


@dataclass
class StageArguments(ComputationFields, RecomputationFields, OptimizerArguments, HubFields, TurnTokenFields):
    """What all stages share. Mixed into a `TrainingArguments`, whose fields it may give other defaults."""

    output_dir: str | None = option(None, "Folder for the result; needed.")
    defaults: str = option(
        "hftune",
        "Whose values arguments have that are not given. hftune: its own, for what is trained (`hftune "
        "explain NAME`). medicalgpt: those of MedicalGPT's script, and what else its code does.",
        choices=["hftune", "medicalgpt"],
    )
    overwrite_output_dir: bool = option(False, "Train even if the output folder holds a finished run, and replace it.")
    bf16: bool | None = option(None, "Compute in bfloat16. Left out: yes on a GPU that can, no on a CPU.")
    pad_token: str | None = option(None, "Token used for padding; left out: the tokenizer's, else its end of text.")
    trust_remote_code: bool = option(False, "Run code that comes with a model.")
    deepspeed: str | None = option(
        None, "DeepSpeed config: a name of ds_configs/ (zero3_offload), a path, or inline JSON."
    )
    warm_start: str | None = option(
        None,
        "Begin with the weights of this checkpoint or output folder, full or adapter, and with nothing "
        "else of it; --resume_from_checkpoint resumes with everything.",
    )
    resume_anyway: bool = option(
        False,
        "Resume also with other data, rate, schedule, order or length than the checkpoint's; the manifest holds both.",
    )
    async_save: bool = option(
        False, "Go on training while a written checkpoint is checked, flushed to the disk and published."
    )
    nvme_path: str | None = option(None, "Folder on a local NVMe disk, for --deepspeed zero3_nvme and its like.")
    logging_nan_inf_filter: bool = option(
        False, "Log the mean of other losses in place of one that is NaN or infinite, which ends a run either way."
    )
    hub_strategy: str = option(
        "end",
        "When --push_to_hub uploads: `end`, the finished result. Checkpoints hold optimizer states and "
        "settings, and are never uploaded; `hftune export hub` uploads the weights of another folder.",
        choices=["end"],
    )
    ds_resolved: dict[str, Any] | None = field(default=None, init=False, metadata={"help": "The config as used."})

    rows_per_record: ClassVar[int] = 1
    """Rows that a record makes: two of a preference pair."""
    told_trackers: ClassVar[dict[str, Any]] = {}
    """What trackers are told next to these arguments; a run with trackers has its own."""

    if TYPE_CHECKING:  # what every TrainingArguments next to this class brings

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        self._given: frozenset[str] = GIVEN_NAMES.get()
        # transformers would choose a folder of its own; preflight asks for one instead.
        self.output_dir = self.output_dir or ""
        # Decided for all libraries: each would guess by itself, and on a CPU they disagree.
        self.use_cpu = self.use_cpu or not launch.has_accelerator()  # type: ignore[has-type]  # of TrainingArguments
        # fp16 is asked for where bf16 is not there; both at once transformers refuses.
        if self.bf16 is None:
            self.bf16 = not self.fp16 and not self.use_cpu and launch.supports_bf16()
        elif self.bf16 and not self.use_cpu:
            launch.check_bf16()
        # Before transformers, which reads JSON of this field with an error of its own.
        self.chat_template_kwargs = self.template_arguments
        self.resolve_recomputation()
        self.check_computation()
        refuse(__package__, "training", self)
        # Before transformers sees it: what it makes of a config cannot be changed any more.
        if self.deepspeed is not None:
            on_demand("hftune.distributed.ds_setup:prepare")(self)
        launch.tell_libraries(use_cpu=self.use_cpu, deepspeed=self.deepspeed is not None)
        # --do_eval alone means evaluation alone, as --do_train False does; an --eval_strategy, from which transformers
        # infers it, does not.
        refused = "do_train" in self._given
        self.do_train = self.do_train or not (self.do_eval or refused)  # type: ignore[has-type]  # of TrainingArguments
        asked = self.use_cpu
        if ranks.planned_world() is not None:
            # A plan, whose devices are not here: transformers would refuse what they could do.
            self.use_cpu, self.deepspeed = True, None
        # transformers (5.23) and TRL (1.16) ask for the device and the processes here, and would join the group.
        self._is_made = False
        super().__post_init__()
        self._is_made = True
        # The plan's own answer, which the rules and the arithmetic ask.
        self.use_cpu = asked
        self.gradient_checkpointing = self.recomputation is not None  # transformers 5.23 copies the other name here

    def to_dict(self) -> dict[str, Any]:
        """Overrides `TrainingArguments.to_dict`, from which trackers and manifests take the arguments."""
        return redacted(super().to_dict() | self.told_trackers)  # type: ignore[misc]  # untyped upstream

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep `__repr__`: each `@dataclass` would write one of its own, with the token in it."""
        super().__init_subclass__(**kwargs)
        # `@dataclass` runs after this and keeps a `__repr__` that is there.
        cls.__repr__ = StageArguments.__repr__  # type: ignore[method-assign]  # on purpose, see above

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"{type(self).__name__}({settings})"

    def __str__(self) -> str:
        return repr(self)

    @property
    def given(self) -> frozenset[str]:
        """Names of the arguments of the run that were given, on a command line or in a file."""
        return self._given

    @property
    def device(self) -> torch.device:
        """Overrides `TrainingArguments.device`: while arguments are made no process group is joined for it.

        Later the first who asks joins it; `start_run` does.
        """
        if not self._is_made:
            return torch.device("cpu") if self.use_cpu else launch.accelerator_device()
        if "_setup_devices" not in vars(self):
            self.join_process_group()
        # Cached by transformers from the first call on.
        found: torch.device = super().device  # type: ignore[misc]  # of TrainingArguments
        return found

    def join_process_group(self) -> None:
        """Meet the other processes, and have transformers find its device among them."""
        with launch.report_waiting():
            launch.join_process_group(
                use_cpu=self.use_cpu, deepspeed=self.deepspeed is not None, timeout=self.ddp_timeout
            )
            _ = super().device  # type: ignore[misc]  # of TrainingArguments

    @property
    def world_size(self) -> int:
        """Overrides `TrainingArguments.world_size`: known before the group is joined."""
        return ranks.world_size()

    @property
    def flat_batches(self) -> bool:
        """Whether documents lie side by side in a row of a batch, which the attention must keep apart."""
        return False

    @property
    def head(self) -> str:
        """What is on top of the model, in the manifest's word."""
        return "causal_lm"

    @property
    def scores(self) -> bool:
        """Whether the model scores conversations or steps, and writes none."""
        return self.head != "causal_lm"

    @property
    def keeps_reference(self) -> bool:
        """Whether the trainer keeps a frozen copy of a model that is trained in full."""
        return False

    @property
    def zero_stage(self) -> int:
        """ZeRO stage 0 to 3; 0 without DeepSpeed."""
        return ds_config.zero_stage(self.ds_resolved)


@dataclass
class PTArguments(StageArguments, TrainingArguments):
    """Pre-training on plain text."""

    block_size: int = option(1024, "Tokens in a training sequence.")
    packing: bool = option(True, "Fill blocks with several documents, each with an end of text. None sees another.")
    packing_strategy: str = option(
        "wrapped",
        "wrapped: cut the stream of all documents every block_size tokens. bfd_split: keep documents whole "
        "(best fit, decreasing) but for those longer than a block.",
        choices=["wrapped", "bfd_split"],
    )
    eval_packing: bool | None = option(None, "Pack held-out documents as well; left out: as --packing.")
    padding_free: bool | None = option(
        None,
        "Without packing: put the documents of a batch into one row instead of padding them. None sees "
        "another. Left out: yes, where the model's attention can keep them apart.",
    )
    cross_document_attention: bool = option(
        False, "Let tokens see, and be predicted from, the documents before theirs in a block."
    )

    @property
    def flat_batches(self) -> bool:
        """Packed blocks are, unless their documents are meant to see each other."""
        # A block whose documents see each other is one document, and needs no borders.
        packs = self.packing or bool(self.eval_packing)
        return bool(self.padding_free) or (packs and not self.cross_document_attention)


@dataclass
class SFTArguments(StageArguments, ThoughtFields, trl.SFTConfig):
    """Supervised fine-tuning on conversations."""

    train_on_inputs: bool = option(False, "Train all tokens, not only the answers.")
    train_on_last_turn: bool = option(False, "Train the last answer only.")
    turn_weights: bool = option(False, "Let the `weight` of a turn scale its loss; else a weight is 0 or 1.")
    packing: bool = option(False, "Fill rows of max_length with several conversations. None sees another.")
    packing_strategy: str = option(
        "bfd",
        "bfd: keep conversations whole (best fit, decreasing); what is longer than max_length loses its "
        "end. bfd_split: cut it into pieces instead. wrapped: cut the stream of all every max_length tokens.",
        choices=["bfd", "bfd_split", "wrapped"],
    )
    padding_free: bool | None = option(
        None,
        "Put the conversations of a batch into one row instead of padding them. None sees another. Left "
        "out: yes, where the model's attention can keep them apart.",
    )
    eval_packing: bool | None = option(None, "Pack held-out conversations as well; left out: as --packing.")

    @property
    def flat_batches(self) -> bool:
        """Packed and padding-free ones are."""
        return self.packing or bool(self.padding_free) or bool(self.eval_packing)
