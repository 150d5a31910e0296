"""`hftune plan`: prints what a run would need, and the least change with which it fits."""

from __future__ import annotations

import argparse
import json

from hftune.arguments.entry import RunArguments, parse_arguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.models.loading.quantisation import is_read_whole, quantisation_in
from hftune.preflight.estimating.candidates import single_changes
from hftune.preflight.estimating.planner import Planner
from hftune.preflight.estimating.traced_step import traced_step
from hftune.preflight.facts import Facts, resolve
from hftune.preflight.model_folder import check_model_folder
from hftune.preflight.rules.quantisation import check_quantised_base, say_read_whole
from hftune.preflight.rules.without_effect import check_without_effect
from hftune.preflight.run_memory import choose_recomputed_share, least_change
from hftune.tools.planning.cluster import cluster_here, cluster_of, steps_of
from hftune.tools.planning.report import as_json, table, words
from hftune.tools.words import Words, number
from hftune.visible import say


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
