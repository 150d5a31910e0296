"""All rules of a run, imported by name: a stage needs no rules of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from hftune.arguments.stage_table import base_stage
from hftune.distributed import nodes
from hftune.errors import UserError
from hftune.on_demand import on_demand
from hftune.preflight.facts import Facts

Rule = Callable[[Facts], Iterator[UserError]]
"""A pure function from the facts of a run to its problems."""

# In the order in which their problems are listed: machines and folders first, the model itself last.
RULES_OF_ALL = (
    "hftune.preflight.rules.machines:check_machines",
    "hftune.preflight.rules.folders:check_folders",
    "hftune.preflight.rules.folders:check_contents",
    "hftune.preflight.rules.without_effect:check_without_effect",
    "hftune.preflight.rules.callbacks:check_hub",
    "hftune.preflight.rules.callbacks:check_trackers",
    "hftune.preflight.rules.callbacks:check_monitors",
    "hftune.preflight.rules.callbacks:check_callbacks",
    "hftune.preflight.rules.data:check_data",
    "hftune.preflight.rules.quantisation:check_quantisation",
    "hftune.preflight.rules.kernels:check_kernels",
    "hftune.preflight.rules.adapters:check_adapters",
    "hftune.preflight.rules.adapters:check_vocabulary",
    "hftune.preflight.rules.optimizer:check_optimizer",
    "hftune.preflight.rules.optimizer:check_schedule",
    "hftune.preflight.rules.parallel:check_parallel",
    "hftune.preflight.rules.model:check_tiling",
    "hftune.preflight.rules.resume:check_resume",
    "hftune.preflight.rules.resume:check_resumed_settings",
    "hftune.preflight.rules.model:check_model",
)

RULES_OF_STAGE = {
    "rm": "hftune.preflight.rules.reward:check_reward",
    "dpo": "hftune.preflight.rules.preference:check_preferences",
    "rl": "hftune.preflight.rules.rl:check_rl",
    "distill": "hftune.preflight.rules.distill:check_distillation",
}


def rules_of(stage: str) -> Iterator[Rule]:
    """The rules that hold for a stage."""
    for place in RULES_OF_ALL:
        yield on_demand(place)
    # Those of the stage that it is based on, too.
    for name in dict.fromkeys((base_stage(stage), stage)):
        if own := RULES_OF_STAGE.get(name):
            yield on_demand(own)


def check_run(facts: Facts) -> None:
    """Raise every problem of a run, on whichever machine, in one message; nothing has been loaded by then."""
    # All rules are asked before any is raised: a user fixes a command once, not once for each problem.
    found = chain.from_iterable(rule(facts) for rule in rules_of(facts.stage))
    nodes.raise_on_all_ranks([*facts.problems, *found])
