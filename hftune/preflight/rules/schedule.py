"""Rules about flags of the learning-rate schedule that exclude each other, or that it would ignore."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.trainer_utils import SchedulerType

from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts

REACTING = ("reduce_lr_on_plateau", "greedy")
CONSTANT = ("constant", "constant_with_warmup")
WSD = "warmup_stable_decay"
COSINES = ("cosine", "cosine_with_restarts", "cosine_with_min_lr", "cosine_warmup_with_min_lr")

# Values that the flags have elsewhere when nothing was chosen: ERNIEKit's files list them all. They change nothing.
HARMLESS = {"num_cycles": 0.5, "lr_end": 1e-7, "power": 1.0}
# Options and the schedules that read them: hftune's flags are passed on under these names.
READ_BY = {"num_cycles": COSINES, "lr_end": ("polynomial",), "power": ("polynomial",)}
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
    """Problems of flags that this schedule does not read."""
    kind = args.schedule
    unread = [
        name
        for name, readers in READ_BY.items()
        if getattr(args, name) not in (None, HARMLESS[name]) and kind not in readers
    ]
    if kind in REACTING:
        unread += [name for name in ("warmup_steps", "lr_decay_steps") if getattr(args, name)]
    for name in unread:
        yield ArgumentError(
            f"{kind} does not read --{name}",
            place=f"--{name}, --lr_scheduler_type",
            fix="leave it out, or change the schedule",
        )


def check_polynomial(args: StageArguments) -> Iterator[UserError]:
    """Problems of the polynomial schedule's end: given twice, or not below its start."""
    if args.schedule != "polynomial":
        return
    end = args.lr_end if args.lr_end is not None else 1e-7
    if args.min_lr and args.lr_end not in (None, HARMLESS["lr_end"], args.min_lr):
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
