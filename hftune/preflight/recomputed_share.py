"""`--activation_checkpointing auto`: as few layers are recomputed as memory needs, and every rank does the same."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from fractions import Fraction

from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.errors import UserError
from hftune.logging import get_logger, notice
from hftune.preflight.estimating.planner import Choice, Planner
from hftune.preflight.estimating.traced_step import traced_step
from hftune.preflight.facts import Facts
from hftune.preflight.memory import GIB, Free
from hftune.preflight.run_memory import planner_of

SHARES = tuple(Fraction(eighths, 8) for eighths in range(9))
"""Shares of the layers to choose from: at most four plans find one, and finer shares would hardly be faster."""

ROOM = 1.1
"""Times the plan must be free: measured peaks are up to a tenth above it (docs/planning.md)."""


def choose_recomputed_share(planner: Planner, asked: Choice, free: Free, training_args: StageArguments) -> Choice:
    """Choose the smallest share of recomputed layers whose plan fits on every rank; all layers, if none does.

    Every rank must take part. Each layer more that is recomputed takes less memory, so that halving finds the share.

    Args:
        asked: The run with all layers recomputed.
        free: What is free for this rank.
        training_args: Gets the share.

    Returns:
        The run as it will be.

    Raises:
        UserError: The run cannot be planned at all: the attention or the adapter is wrong.
    """
    roomy = Free(device=free.device / ROOM, host=free.host / ROOM)
    # `many` is always a share that fits, or all layers, which are never tried: if they do not fit, the memory check
    # says so.
    few, many = 0, len(SHARES) - 1
    while few < many:
        middle = (few + many) // 2
        choice = _with_share(asked, SHARES[middle])
        if planner.plan(choice).fits(roomy, choice.setup):
            many = middle
        else:
            few = middle + 1
    # The rank with the least memory decides for all: under ZeRO-3 a recomputed layer is gathered again, and ranks that
    # disagree would wait for each other forever.
    share = SHARES[ranks.max_over_ranks(many)]
    training_args.recompute_share(share)
    chosen = _with_share(asked, share)
    if ranks.is_main():
        said = "nothing is recomputed" if not share else f"{share} of the layers" if share < 1 else "all layers"
        peak = planner.plan(chosen).needed(chosen.setup) / GIB
        get_logger().info("activation checkpointing: %s (auto): planned peak %.1f GiB", said, peak)
    return chosen


def _with_share(choice: Choice, share: Fraction) -> Choice:
    assert choice.recompute is not None
    which = None if share == 1 else str(share)
    return replace(choice, recompute=replace(choice.recompute, which=which) if share else None)


def choose_recomputed_layers(facts: Facts) -> None:
    """Decide `--activation_checkpointing auto`: the smallest share of recomputed layers that fits on every rank."""
    found = planner_of(facts, traced_step) if facts.model_class is not None else None
    # Where weights and optimizer alone do not fit, recomputing activations is no way out: a rule says what is.
    fits = found is not None and found[0].least(found[1]).fits(found[2], found[1].setup)
    if ranks.all_agree(fits) and found is not None:  # choosing is a collective
        with contextlib.suppress(UserError):  # what is wrong with the attention or the adapter has its own rule
            choose_recomputed_share(*found, facts.training_args)
    if facts.training_args.recomputes_least:
        notice("--activation_checkpointing auto: this model is not planned, so that all layers are recomputed")
