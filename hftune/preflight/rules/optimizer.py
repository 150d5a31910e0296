"""Rules about optimizers and schedules: not installed, changed by ZeRO, or given options that they do not read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TypeVar

from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.trainer_utils import SchedulerType

from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts
from hftune.preflight.rules import refused

Entry = TypeVar("Entry")

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
    yield from refused("optimizer", facts)
    yield from check_optim_args(facts.training_args)


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


CONSTANT = ("constant", "constant_with_warmup")
FIXED = ("optimizer", "last_epoch", "num_warmup_steps", "num_training_steps")


def check_schedule(facts: Facts) -> Iterator[UserError]:
    """Problems of the learning-rate schedule."""
    yield from refused("schedule", facts.training_args)
    yield from check_schedule_kwargs(facts.training_args)


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
