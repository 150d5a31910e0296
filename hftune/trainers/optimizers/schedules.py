"""The learning rate at each step: transformers' schedules, with a floor, an end before the last step, and WSD's styles.

All but the two that react to metrics are one pure function of the step, a factor on the rate of every group. It knows
nothing of the optimizer, whose `defaults` a ZeRO optimizer does not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler
from transformers.trainer_utils import SchedulerType

from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice

Factor = Callable[[int], float]

REACTING = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
FLOOR_OF_THEIR_OWN = (SchedulerType.COSINE_WITH_MIN_LR, SchedulerType.COSINE_WARMUP_WITH_MIN_LR)
WSD_SHARE = 0.1


def make_schedule(args: StageArguments, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """The scheduler of a run of `steps` steps: by `learning_rate_factor`, or one that reacts to metrics."""
    # Both look at metrics and change the optimizer's groups: no function of the step.
    if args.lr_scheduler_type in REACTING:
        return get_scheduler(
            args.lr_scheduler_type, optimizer, scheduler_specific_kwargs=_reacting_options(args, optimizer)
        )
    return LambdaLR(optimizer, learning_rate_factor(args, steps))


def learning_rate_factor(args: StageArguments, steps: int) -> Factor:
    """The factor on each group's own learning rate, by the number of steps taken so far (0 before the first).

    With shape s(t) in [0, 1] as transformers gives it, warm-up w, end T = `lr_decay_steps` or `steps`, and floor
    m = `min_lr` / `learning_rate`: s(t) for t < w, m + (1 - m) * s(min(t, T)) from there on. inverse_sqrt never comes
    to an end, so m cuts it off instead: max(m, s(t)).

    Raises:
        ArgumentError: Warm-up leaves no step for a decay that needs one.
    """
    end = args.lr_decay_steps or steps
    warmup = args.get_warmup_steps(end)
    kind = SchedulerType(args.lr_scheduler_type)
    _check_warmup(kind, warmup, end)
    shape = _wsd(args, warmup, end) if kind == SchedulerType.WARMUP_STABLE_DECAY else _shape(args, kind, warmup, end)
    lowest = 0.0 if kind in FLOOR_OF_THEIR_OWN or not args.min_lr else args.min_lr / args.learning_rate
    # Cosine would rise again after its end; inverse_sqrt has none but the one that was asked for.
    last = args.lr_decay_steps if kind == SchedulerType.INVERSE_SQRT else end
    # A partial has no state of its own: a resumed run follows its arguments, not those of the checkpoint.
    return partial(
        _floored, shape=shape, warmup=warmup, last=last, lowest=lowest, cut=kind == SchedulerType.INVERSE_SQRT
    )


def _floored(step: int, *, shape: Factor, warmup: int, last: int | None, lowest: float, cut: bool) -> float:
    if step < warmup:
        return float(shape(step))
    value = float(shape(step if last is None else min(step, last)))
    return max(lowest, value) if cut else lowest + (1.0 - lowest) * value


def _shape(args: StageArguments, kind: SchedulerType, warmup: int, end: int) -> Factor:
    """transformers' own function of the step, taken from a scheduler on an optimizer that is thrown away."""
    # Only the function is wanted; any optimizer does.
    stand_in = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    scheduler = get_scheduler(
        kind,
        stand_in,
        num_warmup_steps=warmup,
        num_training_steps=end,
        scheduler_specific_kwargs=shape_options(args),
    )
    factor: Factor = scheduler.lr_lambdas[0]
    return factor


def shape_options(args: StageArguments) -> dict[str, Any]:
    """Further options of transformers' schedule function: `lr_scheduler_kwargs` and our own flags."""
    kind = SchedulerType(args.lr_scheduler_type)
    given = dict(args.lr_scheduler_kwargs or {})
    if args.num_cycles is not None and "cosine" in kind.value:
        # Restarts are counted, waves are not.
        restarts = kind == SchedulerType.COSINE_WITH_RESTARTS
        given["num_cycles"] = int(args.num_cycles) if restarts else args.num_cycles
    if kind == SchedulerType.POLYNOMIAL:
        # Its own end is 0 where a floor lifts the whole.
        options = {"lr_end": 0.0 if args.min_lr else args.lr_end, "power": args.power}
        given |= {name: value for name, value in options.items() if value is not None}
    if kind in FLOOR_OF_THEIR_OWN and args.min_lr is not None:
        given["min_lr_rate"] = args.min_lr / args.learning_rate
    return given


def _wsd(args: StageArguments, warmup: int, end: int) -> Factor:
    """Warm-up, stable, decay (arXiv:2404.06395): 1 between warm-up and `end - decay`, then down to 0 at `end`.

    transformers starts its warm-up at the floor, and has no exponential decay; otherwise this is the same.
    """
    options = dict(args.lr_scheduler_kwargs or {})
    # Who gives transformers' own options gets transformers' own schedule.
    if "num_decay_steps" in options:
        scheduler = _shape(args, SchedulerType.WARMUP_STABLE_DECAY, warmup, end)
        return scheduler
    asked = args.lr_wsd_decay_steps
    if asked is None:
        asked = WSD_SHARE
        notice(f"warmup_stable_decay: --lr_wsd_decay_steps left out, so the last {WSD_SHARE:.0%} of the steps decay")
    # Below 1 it is a share of the steps.
    decay = int(asked) if asked >= 1 else math.ceil(asked * end)
    if warmup + decay > end:
        raise ArgumentError(
            f"warm-up ({warmup} steps) and decay ({decay}) are longer than the schedule ({end})",
            place="--warmup_steps, --lr_wsd_decay_steps",
            fix="lower one of them, or train for longer",
        )
    return partial(wsd_factor, warmup=warmup, decay=decay, end=end, style=args.lr_wsd_decay_style)


def wsd_factor(step: int, *, warmup: int, decay: int, end: int, style: str) -> float:
    """Linear warm-up, 1, then by the share p of the decay that is over: the `style`'s way from 1 to 0.

    linear: 1 - p. cosine: (1 + cos(pi p)) / 2. 1-sqrt: 1 - sqrt(p). exponential: 2 * 0.5^p - 1 (Megatron's).
    """
    if step < warmup:
        return step / warmup
    if step < end - decay:
        return 1.0
    over = min(1.0, (step - (end - decay)) / decay)
    return {
        "linear": 1.0 - over,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * over)),
        "1-sqrt": 1.0 - math.sqrt(over),
        "exponential": 2.0 * 0.5**over - 1.0,
    }[style]


def _check_warmup(kind: SchedulerType, warmup: int, end: int) -> None:
    # All steps are warm-up: a short trial run, most likely.
    if warmup < end or not warmup:
        return
    if kind == SchedulerType.POLYNOMIAL:
        raise ArgumentError(
            f"warm-up takes {warmup} steps of {end}, and leaves none for the decay",
            place="--warmup_steps",
            fix="lower it, or give it as a share of the steps, such as 0.03",
        )
    notice(f"warm-up takes {warmup} steps, the schedule ends after {end}: the learning rate never decays")


def _reacting_options(args: StageArguments, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A floor a group, in proportion to its rate: both classes take a list."""
    given = dict(args.lr_scheduler_kwargs or {})
    if args.min_lr is not None:
        given["min_lr"] = [group["lr"] * args.min_lr / args.learning_rate for group in optimizer.param_groups]
    return given
