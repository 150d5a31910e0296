"""Before every run: the memory that it needs, what is refused for it, and how many layers `auto` recomputes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.logging import get_logger, notice
from hftune.on_demand import on_demand
from hftune.preflight.estimating.candidates import combinations, ways
from hftune.preflight.estimating.plan import Plan
from hftune.preflight.estimating.planner import Choice, Planner, Tracer
from hftune.preflight.facts import Facts
from hftune.preflight.free_memory import free_memory
from hftune.preflight.memory import GIB, Free, Setup


def planner_of(facts: Facts, tracer: Tracer | None = None) -> tuple[Planner, Choice, Free] | None:
    """A planner, the run as asked and what is free now; None, with a notice, where the parameters cannot be counted."""
    if facts.skeleton is None:
        return None
    try:
        planner = Planner(facts, tracer)
        asked = planner.asked()
        planner.size(asked.adapter)
    except UserError as problem:
        # A faulty adapter is refused by its own rule; a run that continues must say that memory was not checked.
        notice(f"memory is not checked: {str(problem).splitlines()[0]}")
        return None
    return planner, asked, free_memory(on_cpu=asked.setup.on_cpu, device=ranks.local_rank())


def check_memory(facts: Facts) -> Iterator[UserError]:
    """A problem where weights, gradients and optimizer do not fit; a notice where activations probably do not."""
    found = planner_of(facts)
    if found is None:
        return
    planner, asked, free = found
    missing = shortfall(planner.least(asked), free, asked.setup)
    if missing is None:
        # One process speaks for all: they are alike, or `check_machines` says otherwise.
        if ranks.is_main():
            _say(planner, asked, free)
    elif facts.model_args.ignore_memory_check:
        notice(f"--ignore_memory_check: {missing}")
    else:
        way = way_out(planner, asked, free)
        yield ArgumentError(
            f"the model does not fit: {missing}",
            place="--model_name_or_path",
            fix=(f"add {way}" if way else "use more processes or a smaller model")
            + "; `hftune plan` shows what each way takes; --ignore_memory_check tries all the same",
        )


def _say(planner: Planner, asked: Choice, free: Free) -> None:
    """Log the memory of one process; what probably does not fit is only a notice: activations are by formula."""
    plan = planner.plan(asked)
    # Below half a hundredth of a GiB it would be shown as 0.00.
    parts = {part: count for part, count in plan.moment.parts.items() if count >= 0.005 * GIB}
    named = ", ".join(f"{part} {count / GIB:.2f}" for part, count in parts.items())
    host = f", {plan.host / GIB:.1f} in the machine's memory" if plan.host and not asked.setup.on_cpu else ""
    get_logger().info(
        "memory: about %.2f GiB a process%s%s; %.1f GiB free",
        plan.needed(asked.setup) / GIB,
        f" ({named})" if named else "",
        host,
        free.device / GIB,
    )
    if not plan.fits(free, asked.setup):
        way = way_out(planner, asked, free)
        notice(
            "this will probably run out of memory at its peak. "
            + (f"To fix it, add {way}" if way else "Shorter rows or more processes may fix it")
            + "; `hftune plan` shows more ways"
        )


def shortfall(plan: Plan, free: Free, setup: Setup) -> str | None:
    """Which memory is too small, and by what, in words; None where all fits."""
    if plan.fits(free, setup):
        return None
    if setup.on_cpu:
        who = f"{setup.local_processes} processes" if setup.local_processes > 1 else "the process"
        asked = plan.needed(setup) * setup.local_processes
        return f"{asked / GIB:.1f} GiB are needed for {who}, {free.host / GIB:.1f} GiB of memory are free"
    if plan.device > free.device:
        return f"{plan.device / GIB:.1f} GiB are needed in each process, {free.device / GIB:.1f} are free on the GPU"
    asked = plan.host * setup.local_processes
    return f"{asked / GIB:.1f} GiB are needed in the machine's memory, {free.host / GIB:.1f} are free"


def least_change(planner: Planner, asked: Choice, free: Free) -> Choice | None:
    """The least change with which a run fits, activations included: itself, if it does; None where nothing does."""
    try:
        for choice in (changed for start in ways(planner, asked) for changed in combinations(planner, start)):
            if planner.plan(choice).fits(free, choice.setup):
                return choice
    except UserError:
        pass  # peft knows no adapter of such a model, so that none is a way out
    return None


def way_out(planner: Planner, asked: Choice, free: Free) -> str | None:
    """The flags of that change."""
    found = least_change(planner, asked, free)
    return found.flags if found else None


# --- --activation_checkpointing auto ---

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
    # Slow to import, and other runs trace nothing.
    traced_step = on_demand("hftune.preflight.estimating.traced_step:traced_step")
    found = planner_of(facts, traced_step) if facts.model_class is not None else None
    # Where weights and optimizer alone do not fit, recomputing activations is no way out: a rule says what is.
    fits = found is not None and found[0].least(found[1]).fits(found[2], found[1].setup)
    if ranks.all_agree(fits) and found is not None:  # choosing is a collective
        with contextlib.suppress(UserError):  # what is wrong with the attention or the adapter has its own rule
            choose_recomputed_share(*found, facts.training_args)
    if facts.training_args.recomputes_least:
        notice("--activation_checkpointing auto: this model is not planned, so that all layers are recomputed")
