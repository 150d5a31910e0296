"""Rules about optimizers and schedules: not installed, changed by ZeRO, or given options that they do not read."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from typing import TypeVar

from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.trainer_utils import SchedulerType

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.optimizer import MUON
from hftune.arguments.training import StageArguments
from hftune.distributed.ds_config import offload_device
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts
from hftune.preflight.rules import Clashes, clashes

Entry = TypeVar("Entry")

# Name in `--optim` (its start) -> module that must be there, and what pip calls it.
PACKAGES = {
    "galore": ("galore_torch", "galore-torch"),
    "apollo": ("apollo_torch", "apollo-torch"),
    "schedule_free": ("schedulefree", "schedulefree"),
    "stable_adamw": ("optimi", "torch-optimi"),
    "grokadamw": ("grokadamw", "grokadamw"),
    "adamw_torch_4bit": ("torchao", "torchao"),
    "adamw_torch_8bit": ("torchao", "torchao"),
    "adamw_anyprecision": ("torchdistx", "torchdistx"),
    "adamw_torch_xla": ("torch_xla", "torch_xla"),
    "adamw_torch_npu_fused": ("torch_npu", "torch_npu"),
}

# Name (its start) -> why ZeRO-1, 2 and 3 change what it does. They hold all weights of a group as one flat vector, cut
# into a piece for each process.
NOT_UNDER_ZERO = {
    "adafactor": "its second moments are factored by the rows and columns of a matrix",
    "adagrad": "DeepSpeed makes it anew, and without the parameter groups",
    "galore": "it projects the gradient of a matrix",
    "apollo": "it projects the gradient of a matrix",
    "stable_adamw": "it clips the update of each tensor by its own norm",
    "grokadamw": "it treats each tensor by its place in the model",
    "adamw_torch_4bit": "its quantised moments belong to whole tensors",
    "adamw_torch_8bit": "its quantised moments belong to whole tensors",
    "schedule_free": "it must be switched between training and evaluation, which ZeRO does not pass on",
}

# They use up each gradient as soon as it is there: nothing is left to accumulate, to clip or to average.
INSIDE_BACKWARD = (
    "lomo",
    "adalomo",
    "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise",
    "apollo_adamw_layerwise",
)

# What each optimizer reads from `--optim_args`; transformers drops all else without a word.
OPTIM_ARGS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "dampening", "nesterov"),
    "adagrad": ("lr_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "centered"),
    "rmsprop_bnb": ("alpha", "eps", "momentum", "centered"),
    "ademamix": ("beta1", "beta2", "beta3", "alpha", "eps", "t_alpha", "t_beta3"),
    "paged_ademamix": ("beta1", "beta2", "beta3", "alpha", "eps", "t_alpha", "t_beta3"),
    "adamw_anyprecision": ("use_kahan_summation", "momentum_dtype", "variance_dtype", "compensation_buffer_dtype"),
    "galore": ("rank", "update_proj_gap", "scale", "proj_type"),
    "apollo": ("rank", "proj", "scale_type", "update_proj_gap", "scale", "proj_type"),
    "grokadamw": ("alpha_init", "lamb", "gamma", "grokking_signal_decay_rate", "gradient_clipping"),
    "adamw_torch_4bit": ("block_size", "bf16_stochastic_round"),
    "adamw_torch_8bit": ("block_size", "bf16_stochastic_round"),
    "schedule_free": ("weight_lr_power", "r"),
    "stable_adamw": ("decouple_lr", "max_lr", "kahan_sum"),
}


def check_optimizer(facts: Facts) -> Iterator[UserError]:
    """Problems of the optimizer."""
    adapter_args, training_args = facts.adapter_args, facts.training_args
    yield from check_installed(training_args.optim_name)
    yield from check_others(adapter_args, training_args)
    yield from check_stage_0(training_args)
    yield from check_optim_args(training_args)


def check_installed(optim: str) -> Iterator[UserError]:
    """Problems of an optimizer whose package is missing, or that updates inside the backward pass."""
    found = _by_start(PACKAGES, optim)
    if optim in INSIDE_BACKWARD:
        yield ArgumentError(
            f"{optim} updates each weight inside the backward pass: no accumulation, no clipping, no parameter groups",
            place="--optim",
            fix="use galore_adamw, apollo_adamw, or paged_adamw_8bit to save memory",
        )
    elif found and importlib.util.find_spec(found[0]) is None:
        yield ArgumentError(f"{optim} needs a package", place="--optim", fix=f"pip install {found[1]}")


def check_others(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of optimizers under ZeRO, which trains flat shards, without a GPU, offloaded, or with an adapter."""
    optim, stage, low_rank = training_args.optim_name, training_args.zero_stage, ("galore", "apollo")
    paged, plain = optim.startswith("paged"), optim.removeprefix("paged_")
    reason = _by_start(NOT_UNDER_ZERO, optim)
    others: Clashes = {
        f"ZeRO-{stage}": (
            stage and reason,
            f"flat pieces of the weights are trained, and {reason}; adamw_torch, adamw_8bit, lion_32bit and muon do, "
            "or train without DeepSpeed, or with ZeRO stage 0",
        ),
        "--use_cpu": (
            training_args.use_cpu and (paged or optim == "galore_adamw_8bit"),
            f"it runs on a GPU only; use {plain if paged else 'galore_adamw'}",
        ),
        "--deepspeed: zero_optimization.offload_optimizer": (
            (paged or optim == MUON) and offload_device(training_args.ds_resolved, "optimizer"),
            f"both would offload the moments; use {plain}" if paged else "its matrices must be whole",
        ),
        f"--max_grad_norm {training_args.max_grad_norm or 0:g}": (
            optim == MUON and stage and training_args.max_grad_norm,
            "under ZeRO DeepSpeed clips Muon's orthogonal updates, not the gradients, which would shrink every step: "
            "add --max_grad_norm 0; an orthogonal update has the same size whatever the gradient's",
        ),
        "--use_peft": (
            optim.startswith(low_rank) and adapter_args.use_peft,
            "it is for training whole matrices, and an adapter has none",
        ),
    }
    yield from clashes(f"--optim {optim}", others)
    if optim.startswith(low_rank) and not training_args.optim_target_modules:
        yield ArgumentError(
            f"{optim} must know whose gradients to project",
            place="--optim_target_modules",
            fix="add --optim_target_modules all-linear, or names such as attn mlp",
        )


def check_stage_0(training_args: StageArguments) -> Iterator[UserError]:
    """A problem of DeepSpeed in 16 bit without ZeRO: it takes an empty first step, so that Adam's correction is off.

    `FP16_UnfusedOptimizer.initialize_optimizer_states` of DeepSpeed 0.19.8; the first update is 0.74 of AdamW's.
    """
    config = training_args.ds_resolved
    if config is None or training_args.zero_stage:
        return
    for name in ("bf16", "fp16"):
        enabled = config.get(name, {}).get("enabled", False)
        # "auto" is filled in later, with the argument of that name.
        if enabled is True or (enabled == "auto" and getattr(training_args, name)):
            yield ArgumentError(
                f"DeepSpeed without ZeRO takes an empty first step in {name}, and Adam's next ones are too small",
                place="--deepspeed: zero_optimization.stage",
                fix="use stage 1, 2 or 3, or train without --deepspeed",
            )


def check_optim_args(training_args: StageArguments) -> Iterator[UserError]:
    """Problems of `--optim_args` that transformers would drop in silence."""
    optim, known = training_args.optim_name, _by_start(OPTIM_ARGS, training_args.optim_name) or ()
    # As transformers splits it: `name=value,name=value`, without quotes or nesting.
    for part in (training_args.optim_args or "").replace(" ", "").split(","):
        name, equals, _ = part.partition("=")
        if part and not equals:
            yield ArgumentError(f"{part!r} has no value", place="--optim_args", fix="write name=value,name=value")
        elif name == "weight_decay":
            yield ArgumentError("weight decay is set for each group", place="--optim_args", fix="use --weight_decay")
        elif part and name not in known:
            fix = f"it takes {', '.join(known)}" if known else "leave it out; --adam_beta1 and others are flags"
            yield ArgumentError(f"{optim} does not take {name}", place="--optim_args", fix=fix)


def _by_start(table: dict[str, Entry], optim: str) -> Entry | None:
    """The entry with the longest name that `optim` begins with; None for none."""
    # `adamw_torch_8bit` begins with `adamw_torch`: the longest name is meant.
    fitting = [name for name in table if optim.startswith(name)]
    return table[max(fitting, key=len)] if fitting else None


REACTING = ("reduce_lr_on_plateau", "greedy")
CONSTANT = ("constant", "constant_with_warmup")
WSD = "warmup_stable_decay"
COSINES = ("cosine", "cosine_with_restarts", "cosine_with_min_lr", "cosine_warmup_with_min_lr")

FIXED = ("optimizer", "last_epoch", "num_warmup_steps", "num_training_steps")


def check_schedule(facts: Facts) -> Iterator[UserError]:
    """Problems of the learning-rate schedule."""
    training_args = facts.training_args
    yield from check_floor(training_args)
    yield from check_unread_flags(training_args)
    yield from check_polynomial(training_args)
    yield from check_schedule_kwargs(training_args)
    yield from check_schedule_free(training_args)


def check_floor(args: StageArguments) -> Iterator[UserError]:
    """Problems of `--min_lr`: above the learning rate, given twice, or never reached by the schedule."""
    kind = args.schedule
    given = args.lr_scheduler_kwargs or {}
    own = {"min_lr", "min_lr_rate", "min_lr_ratio"} & set(given)
    # transformers' schedules `..._with_min_lr` end with an error of their own without it, when training begins.
    if args.min_lr is None:
        if kind.endswith("with_min_lr") and not own:
            yield ArgumentError(f"{kind} needs its end", place="--lr_scheduler_type", fix="add --min_lr, such as 1e-6")
        return
    if not 0 <= args.min_lr <= args.learning_rate:
        yield ArgumentError(
            f"{args.min_lr:g} is not between 0 and the learning rate, {args.learning_rate:g}",
            place="--min_lr",
            fix="give a lower rate",
        )
    if kind in CONSTANT and args.min_lr:
        yield ArgumentError(f"{kind} never comes down to a lowest rate", place="--min_lr", fix="use cosine or linear")
    if own or (kind == "polynomial" and "lr_end" in given):
        yield ArgumentError(
            "the lowest rate is given twice", place="--min_lr, --lr_scheduler_kwargs", fix="leave out one of them"
        )


def check_unread_flags(args: StageArguments) -> Iterator[UserError]:
    """Problems of flags that a schedule which reacts to the loss does not read; others are in `without_effect.py`."""
    for name in ("warmup_steps", "lr_decay_steps"):
        if args.schedule in REACTING and getattr(args, name):
            yield ArgumentError(
                f"{args.schedule} does not read --{name}",
                place=f"--{name}, --lr_scheduler_type",
                fix="leave it out, or change the schedule",
            )


def check_polynomial(args: StageArguments) -> Iterator[UserError]:
    """Problems of the polynomial schedule's end: given twice, or not below its start."""
    if args.schedule != "polynomial":
        return
    end = args.lr_end if args.lr_end is not None else 1e-7
    if args.min_lr and args.lr_end not in (None, 1e-7, args.min_lr):
        yield ArgumentError("the end is given twice", place="--min_lr, --lr_end", fix="leave out one of them")
    elif not args.min_lr and end >= args.learning_rate:
        yield ArgumentError(
            f"polynomial ends at {end:g}, which is not below the learning rate, {args.learning_rate:g}",
            place="--lr_end",
            fix="give a lower one",
        )


def check_schedule_kwargs(args: StageArguments) -> Iterator[UserError]:
    """Problems of `--lr_scheduler_kwargs` that the schedule does not take; some would drop them in silence."""
    kind = args.schedule
    given = args.lr_scheduler_kwargs or {}
    # Asked of transformers itself, so that a schedule's new option needs no word here.
    taken = inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(kind)]).parameters
    known = [] if kind in CONSTANT else [name for name in taken if name not in FIXED]
    twice = [name for name in ("num_cycles", "lr_end", "power") if name in given and getattr(args, name) is not None]
    for name in twice:
        yield ArgumentError(f"{name} is given twice", place=f"--{name}, --lr_scheduler_kwargs", fix="leave out one")
    if "kwargs" in known:  # handed on to a class with a signature of its own, which speaks up
        return
    for name in set(given) - set(known):
        fix = f"it takes {', '.join(known)}" if known else "leave them out"
        yield ArgumentError(f"{kind} does not take {name}", place="--lr_scheduler_kwargs", fix=fix)


def check_schedule_free(args: StageArguments) -> Iterator[UserError]:
    """Problems of schedule-free optimizers (arXiv:2405.15682), which warm up by themselves, with a schedule."""
    if not args.optim_name.startswith("schedule_free"):
        return
    kind = args.schedule
    if kind != "constant":
        yield ArgumentError(
            f"{args.optim_name} replaces the schedule, and {kind} would come on top",
            place="--lr_scheduler_type",
            fix="add --lr_scheduler_type constant; --warmup_steps is handed on to the optimizer",
        )
    # transformers takes a number below 1 for a share of all steps, which the optimizer does not know.
    if 0 < args.warmup_steps < 1:
        yield ArgumentError(
            f"{args.optim_name} takes its warm-up in steps", place="--warmup_steps", fix="give a whole number"
        )
