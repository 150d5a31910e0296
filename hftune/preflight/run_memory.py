"""Before every run: the memory that it needs, and what is refused for it."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.logging import get_logger, notice
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
    except (UserError, ValueError, TypeError, NotImplementedError) as problem:
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


def way_out(planner: Planner, asked: Choice, free: Free) -> str | None:
    """The flags of the least change with which a run fits, activations included; None where nothing does."""
    try:
        for choice in (changed for start in ways(planner, asked) for changed in combinations(planner, start)):
            if planner.plan(choice).fits(free, choice.setup):
                return choice.flags
    except UserError:
        pass  # peft knows no adapter of such a model, so that none is a way out
    return None
