"""`hftune plan`: prints what a run would need, and the least change with which it fits."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hftune.arguments.entry import RunArguments, parse_arguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.models.loading.quantisation import is_read_whole, quantisation_in
from hftune.preflight.estimating.candidates import single_changes
from hftune.preflight.estimating.parts import PARTS
from hftune.preflight.estimating.plan import Plan
from hftune.preflight.estimating.planner import Choice, Planner
from hftune.preflight.estimating.traced_step import traced_step
from hftune.preflight.facts import Facts, resolve
from hftune.preflight.memory import GIB, Free
from hftune.preflight.model_folder import check_model_folder
from hftune.preflight.rules.quantisation import check_quantised_base, say_read_whole
from hftune.preflight.rules.without_effect import check_without_effect
from hftune.preflight.run_memory import choose_recomputed_share, least_change
from hftune.tools.planning.cluster import Cluster, Steps, cluster_here, cluster_of, steps_of
from hftune.tools.words import Words, number
from hftune.visible import say

TIGHT = 0.92
"""A plan that takes more than this share of what is free: an allocator's gaps may not leave it."""
Row = tuple[Choice, Plan]
"""A way to run, and what it needs."""


def plan(stage: str, argv: list[str]) -> None:
    """Print plans for a script's arguments.

    Args:
        stage: A key of `STAGES`.
        argv: The script's arguments, with `--gpus`, `--nodes` and `--json` among them.
    """
    question, rest = take_own(argv)
    cluster = cluster_of(question.gpus, question.nodes) if question.gpus else cluster_here(question.nodes)
    device = cluster.device
    # Inside, the planned devices pass for real: parsing resolves bf16, global batch and DeepSpeed's "auto" from the
    # world's size and device, before a process group exists.
    with ranks.planning_for(
        ranks.PlannedWorld(cluster.count, cluster.per_node, device.on_cpu, device.bf16, device.major)
    ):
        given = parse_arguments(stage, rest)
        facts = _facts(stage, given)
        planner = Planner(facts, traced_step)
        free, training_args = cluster.free, facts.training_args
        # Before the table: `auto` leaves its share in `training_args`, from which every row starts.
        if training_args.recomputes_least:
            choose_recomputed_share(planner, planner.asked(), free, training_args)
        asked = planner.asked()
        rows = [(choice, planner.plan(choice)) for choice in (asked, *single_changes(planner, asked))]
        fitting = least_change(planner, asked, free)
        best = (fitting, planner.plan(fitting)) if fitting else None
        work = (fitting or asked).work
        # `work` counts one process; the cluster's devices are the processes of the plan.
        steps = steps_of(facts.data_args, training_args, work.examples * work.accumulation * cluster.count)
    if question.json:
        say(json.dumps(as_json(rows, best, free, cluster, steps)))
        return
    if best is not None and best not in rows:
        rows.append(best)
    say("\n".join([*table(rows, free), "", *words(rows, best, free, cluster, steps)]))


def _facts(stage: str, given: RunArguments[StageArguments]) -> Facts[StageArguments]:
    """What the run would be, as a run decides it.

    Raises:
        UserError: It would be refused, or there is no model of transformers' own to plan for.
    """
    raise_together([*check_model_folder(given.model), *check_quantised_base(given.adapter, given.training)])
    facts = resolve(stage, given)
    # Before problems that follow from it. A folder is often planned for before anybody has vetted it, so its own code
    # never runs, whatever the arguments say.
    if facts.config is not None and facts.model_class is None:
        raise ArgumentError(
            f"the code of {facts.config.model_type} comes with the model, and is not run to plan",
            place="--model_name_or_path",
            fix="plan for a model of transformers' own with such sizes",
        )
    raise_together([*facts.problems, *check_without_effect(facts)])
    assert facts.build is not None and facts.config is not None, "without a config there is a problem"
    folder = str(facts.model_args.model_name_or_path)
    how = quantisation_in(folder)
    if how is not None and is_read_whole(how):
        notice(say_read_whole(folder, how))
    if facts.skeleton is None:
        raise ArgumentError(
            f"transformers has no {facts.training_args.head} model of {facts.config.model_type}",
            place="--model_name_or_path",
            fix="plan for another model",
        )
    return facts


def take_own(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into the planner's own flags (`--gpus`, `--nodes`, `--json`) and the script's arguments.

    Raises:
        ArgumentError: One without a value, or whose value is not a number.
    """
    own = Words("hftune plan")
    own.add_argument("--gpus")
    own.add_argument("--nodes", type=number(int, 1, 999_999), default=1)
    own.add_argument("--json", action="store_true")
    # Taken out before the script's parser sees the line: it would refuse names that it does not have.
    return own.parse_known_args(argv)


# --- what is printed ---


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
