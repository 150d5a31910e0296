"""Shows plans as a table, as lines of text, and as JSON."""

from __future__ import annotations

from typing import Any

from hftune.preflight.estimating.parts import PARTS
from hftune.preflight.estimating.plan import Plan
from hftune.preflight.estimating.planner import Choice
from hftune.preflight.memory import GIB, Free
from hftune.tools.planning.cluster import Cluster, Steps

TIGHT = 0.92
"""A plan that takes more than this share of what is free: an allocator's gaps may not leave it."""


Row = tuple[Choice, Plan]
"""A way to run, and what it needs."""


def verdict(row: Row, free: Free) -> str:
    """The word for a row: "fits", "tight" or "too much"."""
    choice, plan = row
    setup = choice.setup
    if not plan.fits(free, setup):
        return "too much"
    # Processes on a CPU share one memory; each on a GPU has a device of its own.
    taken, memory = (plan.device * setup.local_processes, free.host) if setup.on_cpu else (plan.device, free.device)
    return "tight" if taken > TIGHT * memory else "fits"


def table(rows: list[Row], free: Free) -> list[str]:
    """The table, a line for each choice: GiB of each process by part, at the peak."""
    width = max(len(choice.flags) for choice, _ in rows)
    heads = ("weights", "gradients", "optimizer", "activat.", "loss", "buffers", "other", "total", "host")
    lines = [f"{'GiB in each process':{width}} " + "".join(f"{head:>10}" for head in heads)]
    for choice, plan in rows:
        parts = [plan.moment.parts.get(part, 0.0) for part in PARTS]
        # The driver's context has no column: it counts as other, so that a row adds up to its total.
        parts[-1] += plan.context
        figures = "".join(f"{size / GIB:10.1f}" for size in (*parts, plan.device, plan.host))
        lines.append(f"{choice.flags:{width}} {figures}  {verdict((choice, plan), free)}")
    return lines


def words(rows: list[Row], best: Row | None, free: Free, cluster: Cluster, steps: Steps) -> list[str]:
    """The lines below the table: flags to type, tokens and steps."""
    asked, plan = rows[0]
    host = "" if asked.setup.on_cpu or free.host == float("inf") else f", {_gib(free.host)} in the machine"
    lines = [f"{cluster}: {_gib(free.device)} free for each process{host}"]
    if plan.untraced:
        lines.append(f"activations are by formula, not traced ({plan.untraced}): take them as a rough guess")
    if not asked.work.length_known:
        lines.append(f"nothing bounds the length of rows: {asked.work.tokens} tokens were taken")
    if best is None:
        lines.append("nothing of this fits: use more or larger devices, shorter rows, or a smaller model")
        return lines
    choice, _ = best
    if choice is asked:
        lines.append("it fits as asked")
    else:
        lines.append(f"the least change that fits, to be added to the command line: {choice.flags}")
    work, setup = choice.work, choice.setup
    tokens = work.tokens_per_micro_step * work.accumulation * setup.processes
    lines.append(
        f"{tokens:,} tokens a step at most: {work.rows} rows of {work.tokens} x {work.accumulation} x {setup.processes}"
    )
    lines.append(f"{steps.count:,} steps ({steps.because})" if steps.count else f"steps unknown: {steps.because}")
    return lines


def as_json(rows: list[Row], best: Row | None, free: Free, cluster: Cluster, steps: Steps) -> dict[str, Any]:
    """All plans for `--json`, sizes in bytes."""
    return {
        "device": cluster.device.name,
        "devices": cluster.count,
        "nodes": cluster.nodes,
        # JSON has no infinity.
        "free": {"device": free.device, "host": None if free.host == float("inf") else free.host},
        "steps": steps.count,
        "choices": [_choice(row, free) for row in rows],
        "cheapest": None if best is None else _choice(best, free),
    }


def _choice(row: Row, free: Free) -> dict[str, Any]:
    choice, plan = row
    work, word = choice.work, verdict(row, free)
    return {
        "flags": choice.flags,
        "fits": word != "too much",
        "verdict": word,
        "peak": plan.device,
        "when": plan.moment.name,
        "parts": dict(plan.moment.parts) | {"context": plan.context},
        "host": plan.host,
        "traced": plan.untraced is None,
        "micro_batch": work.examples,
        "accumulation": work.accumulation,
        "tokens_per_step": work.tokens_per_micro_step * work.accumulation * choice.setup.processes,
    }


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
