"""Shows plans as a table, as lines of text, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.preflight.estimating.parts import PARTS
from hftune.preflight.estimating.plan import Plan
from hftune.preflight.estimating.planner import Choice
from hftune.preflight.memory import GIB, Free
from hftune.tools.planning.cluster import Cluster, Steps

TIGHT = 0.92
"""A plan that takes more than this share of what is free: an allocator's gaps may not leave it."""


@dataclass(frozen=True)
class Row:
    """A choice, its plan, and whether it fits."""

    choice: Choice
    plan: Plan
    fits: bool


def verdict(row: Row, free: Free) -> str:
    """The word for a row: "fits", "tight" or "too much"."""
    if not row.fits:
        return "too much"
    memory = free.host if row.choice.setup.on_cpu else free.device
    # Processes on a CPU share one memory; each on a GPU has a device of its own.
    share = row.choice.setup.local_processes if row.choice.setup.on_cpu else 1
    return "tight" if row.plan.device * share > TIGHT * memory else "fits"


def table(rows: list[Row], free: Free) -> list[str]:
    """The table, a line for each choice: GiB of each process by part, at the peak."""
    width = max(len(row.choice.flags) for row in rows)
    heads = ("weights", "gradients", "optimizer", "activat.", "loss", "buffers", "other", "total", "host")
    lines = [f"{'GiB in each process':{width}} " + "".join(f"{head:>10}" for head in heads)]
    for row in rows:
        parts = [row.plan.moment.parts.get(part, 0.0) for part in PARTS]
        # The driver's context has no column: it counts as other, so that a row adds up to its total.
        parts[-1] += row.plan.context
        figures = "".join(f"{size / GIB:10.1f}" for size in (*parts, row.plan.device, row.plan.host))
        lines.append(f"{row.choice.flags:{width}} {figures}  {verdict(row, free)}")
    return lines


def words(rows: list[Row], best: Row | None, free: Free, cluster: Cluster, steps: Steps) -> list[str]:
    """The lines below the table: flags to type, tokens and steps."""
    asked = rows[0]
    lines = [f"{cluster}: {_gib(free.device)} free for each process" + _host(free, asked)]
    if asked.plan.untraced:
        lines.append(f"activations are by formula, not traced ({asked.plan.untraced}): take them as a rough guess")
    if not asked.choice.work.length_known:
        lines.append(f"nothing bounds the length of rows: {asked.choice.work.tokens} tokens were taken")
    if best is None:
        lines.append("nothing of this fits: use more or larger devices, shorter rows, or a smaller model")
        return lines
    if best is asked:
        lines.append("it fits as asked")
    else:
        lines.append(f"the least change that fits, to be added to the command line: {best.choice.flags}")
    work, setup = best.choice.work, best.choice.setup
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
    plan, work = row.plan, row.choice.work
    return {
        "flags": row.choice.flags,
        "fits": row.fits,
        "verdict": verdict(row, free),
        "peak": plan.device,
        "when": plan.moment.name,
        "parts": dict(plan.moment.parts) | {"context": plan.context},
        "host": plan.host,
        "traced": plan.untraced is None,
        "micro_batch": work.examples,
        "accumulation": work.accumulation,
        "tokens_per_step": work.tokens_per_micro_step * work.accumulation * row.choice.setup.processes,
    }


def _host(free: Free, row: Row) -> str:
    if row.choice.setup.on_cpu or free.host == float("inf"):
        return ""
    return f", {_gib(free.host)} in the machine"


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
