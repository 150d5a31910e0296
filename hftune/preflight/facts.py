"""What a run is: everything that its arguments leave open is decided here, once, and holds from then on.

Rules, loaders, trainers and the bookends of a script ask `Facts`. None of them decides again, and no rule changes
anything: `tests/unit/preflight/test_facts.py` holds all rules to that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic

from transformers import PreTrainedConfig, PreTrainedModel
from typing_extensions import TypeVar

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.data import DataArguments
from hftune.arguments.entry import RunArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.recomputation import MLP
from hftune.arguments.stage_table import base_stage
from hftune.arguments.training import StageArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.checkpoints.resume import FoundCheckpoint, requested_checkpoint
from hftune.checkpoints.template_arguments import recorded_arguments, say_recorded
from hftune.distributed import nodes, ranks
from hftune.distributed.ds_config import DsConfig
from hftune.errors import UserError
from hftune.logging import notice
from hftune.models.attention.layout import attention_for, decide_rows
from hftune.models.classes import causal_class
from hftune.models.loading.build import Build, skeleton, weight_dtype
from hftune.models.loading.config import model_config
from hftune.models.vocabulary import recorded_growth
from hftune.on_demand import on_demand
from hftune.preflight.model_folder import check_model_folder

LIGER_LOSSES = ("fused_linear_cross_entropy", "cross_entropy")
"""Liger's keys that replace the model's forward pass, in which hftune's trainers ask for the loss of labels alone."""

LIGER_MLPS = ("swiglu", "geglu")
"""Those that replace the MLP's."""


def complete_chain(adapter_args: AdapterArguments) -> None:
    """Put the adapters that the named one was trained on before it."""
    if not adapter_args.adapter_chain:
        return
    whole = on_demand("hftune.checkpoints.folder_checks:whole_chain")(adapter_args.adapter_chain)
    if whole != adapter_args.adapter_chain:
        notice(f"{adapter_args.adapter_chain[0]} was trained upon others: --peft_path {','.join(whole)}")
        adapter_args.peft_path = ",".join(whole)


def take_tokenizer_of_adapter(model_args: ModelArguments, adapter_args: AdapterArguments) -> None:
    """Take the tokenizer of a continued adapter that added tokens, where no other was named."""
    grown = [folder for folder in adapter_args.adapter_chain if recorded_growth(read_manifest(folder)) is not None]
    # The last one of the chain: each tokenizer has the tokens of those before it.
    if grown and model_args.tokenizer_name_or_path is None:
        notice(f"the tokenizer is that of {grown[-1]}, which has the tokens that were added")
        model_args.tokenizer_name_or_path = grown[-1]


def take_template_arguments(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> None:
    """Take what the chat template was given when the base (or the last adapter upon it) was trained."""
    if training_args.chat_template_kwargs is not None:
        return
    # The last one trained comes first: it may have been trained with others than its base.
    for folder in [*reversed(adapter_args.adapter_chain), model_args.model_name_or_path]:
        if found := recorded_arguments(folder):
            say_recorded(found, folder)
            training_args.chat_template_kwargs = found
            return


def keep_own_layers(adapter_args: AdapterArguments, training_args: StageArguments) -> None:
    """Switch off Liger's replacements that would undo hftune's: the Trainer applies Liger last of all."""
    if not training_args.use_liger_kernel:
        return
    kept = kept_from_liger(adapter_args, training_args)
    # What was given stays, and is refused by its rule where it contradicts.
    settings = dict.fromkeys(kept, False) | dict(training_args.liger_kernel_config or {})
    vars(training_args)["liger_kernel_config"] = settings
    notice(f"--use_liger_kernel: norms and rotary embeddings; as hftune has them stay {', '.join(kept)}")


def kept_from_liger(adapter_args: AdapterArguments, training_args: StageArguments) -> list[str]:
    """Liger's keys for what hftune computes itself: losses, and MLPs that have LoRA, tiles or recomputation."""
    parts = training_args.recomputation.parts if training_args.recomputation is not None else ()
    # FP8 replaces the linear layers within, which Liger's MLP would not call.
    own_mlp = adapter_args.use_peft or training_args.tiled_mlp or MLP in parts or bool(training_args.fp8)
    return [*LIGER_LOSSES, *(LIGER_MLPS if own_mlp else ())]


Training = TypeVar("Training", bound=StageArguments, covariant=True, default=StageArguments)


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Args:
        processes: All of them.
        on_cpu: Whether they train on processors.
        everyone: What each says of itself, by rank; empty where there is one process, or a plan is made.
    """

    processes: int
    on_cpu: bool
    everyone: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Facts(Generic[Training]):
    """All that is decided about one run.

    Args:
        stage: A key of `STAGES`.
        arguments: As decided. They are copies: those that were given stay what they were.
        build: How the model is built; None where its config cannot be read.
        world: The processes.
        checkpoint: What `--resume_from_checkpoint` means.
        problems: What was found wrong while deciding.
    """

    stage: str
    arguments: RunArguments[Training]
    build: Build | None
    world: World
    checkpoint: FoundCheckpoint
    problems: tuple[UserError, ...] = ()

    @property
    def model_args(self) -> ModelArguments:
        """The arguments of the model."""
        return self.arguments.model

    @property
    def data_args(self) -> DataArguments:
        """The arguments of the data."""
        return self.arguments.data

    @property
    def adapter_args(self) -> AdapterArguments:
        """The arguments of the adapter and of freezing."""
        return self.arguments.adapter

    @property
    def training_args(self) -> Training:
        """The arguments of the stage."""
        return self.arguments.training

    @property
    def config(self) -> PreTrainedConfig | None:
        """The model's config; None where it cannot be read, which is among the problems."""
        return self.build.config if self.build else None

    @property
    def model_class(self) -> Any:
        """The class of the causal LM; None without a config, or where its code comes with the model."""
        return causal_class(self.build.config) if self.build else None

    @property
    def deepspeed(self) -> DsConfig | None:
        """The DeepSpeed config as used; None without DeepSpeed."""
        return self.training_args.ds_resolved

    @cached_property
    def skeleton(self) -> PreTrainedModel | None:
        """The model on the meta device; None where there is no config, or no such model can be made of it.

        Put an adapter around a copy only: this one is shared.
        """
        if self.build is None:
            return None
        try:
            return skeleton(self.build.config, self.training_args, scores=self.training_args.scores)
        except (OSError, ValueError, KeyError):
            return None  # code that comes with a model, or no score head: loading has its own words for these


def resolve(stage: str, given: RunArguments[Training]) -> Facts[Training]:
    """The facts of a run. Every process must call it: they exchange who they are and what they found.

    Args:
        stage: A key of `STAGES`.
        given: Left as they are. One thing is shared with the copies: the live DeepSpeed config, of which transformers
            knows one a process.

    Raises:
        ArgumentError: `--warm_start` names no whole weights, on whichever machine: nothing else can be known then.
    """
    # Shallow copies: what is decided replaces values, and never changes a list or dict within.
    arguments = RunArguments(
        copy.copy(given.model), copy.copy(given.data), copy.copy(given.adapter), copy.copy(given.training)
    )
    model_args, data_args, adapter_args, training_args = arguments
    # Before anything is decided: machines are compared by what they were given.
    world = _world(arguments)
    problems: list[UserError] = []
    # First, since it says which model this is.
    if training_args.warm_start:
        apply_warm_start = on_demand("hftune.checkpoints.warm_start:apply_warm_start")
        _attempt(problems, lambda: apply_warm_start(model_args, adapter_args, training_args))
    nodes.raise_on_all_ranks(problems)

    # Before any rule: the search for it is a collective, in which all processes must take part.
    checkpoint = requested_checkpoint(training_args)
    if checkpoint.folder is not None and not checkpoint.problems:
        keep_global_batch = on_demand("hftune.checkpoints.global_batch:keep_global_batch")
        _attempt(problems, lambda: keep_global_batch(training_args, data_args))
    # After the warm start, which may name the adapter; before the tokenizer, which may be one of the chain's.
    _attempt(problems, lambda: complete_chain(adapter_args))
    _attempt(problems, lambda: take_tokenizer_of_adapter(model_args, adapter_args))
    if base_stage(stage) != "pt":  # documents are written without a template
        _attempt(problems, lambda: take_template_arguments(model_args, adapter_args, training_args))
    keep_own_layers(adapter_args, training_args)
    # A folder without a model has its own rule; its config would only be missed a second time.
    build = None if any(check_model_folder(model_args)) else _build(stage, arguments, problems)
    facts = Facts(stage, arguments, build, world, checkpoint, tuple(problems))
    # Last: the planner asks for rows, attention and memory. A plan for other machines knows what is free there itself.
    if training_args.recomputes_least and ranks.planned_world() is None:
        on_demand("hftune.preflight.run_memory:choose_recomputed_layers")(facts)
    return facts


def _attempt(problems: list[UserError], decide: Callable[[], object]) -> None:
    """Decide something; an error joins the problems, which are raised together later."""
    try:
        decide()
    except UserError as problem:
        problems.append(problem)


def _world(arguments: RunArguments[StageArguments]) -> World:
    training_args = arguments.training
    processes = ranks.world_size()
    # A plan is made by one process for others that are not there to be asked.
    if ranks.planned_world() is not None or processes == 1:
        return World(processes, training_args.use_cpu)
    _ = training_args.device  # joins the group, which is asked
    everyone = ranks.gathered_objects(on_demand("hftune.preflight.rules.machines:process_facts")(arguments))
    return World(processes, training_args.use_cpu, tuple(everyone))


def _build(stage: str, arguments: RunArguments[StageArguments], problems: list[UserError]) -> Build | None:
    """Config, row layout and attention, in this order: each depends on the one before."""
    model_args, _, adapter_args, training_args = arguments
    try:
        config = model_config(model_args, training_args)
    except UserError as problem:
        problems.append(problem)
        return None
    found: list[str | None] = []
    # Rows first: only where several lie in a row must the attention keep them apart.
    _attempt(problems, lambda: decide_rows(base_stage(stage), config, model_args, training_args))
    _attempt(problems, lambda: found.append(attention_for(config, model_args, training_args)))
    dtype = weight_dtype(model_args, training_args, trains_all=not adapter_args.use_peft)
    return Build(config, found[0] if found else None, dtype)
