"""All rules of a run. Those of one stage are imported by name: no other needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from hftune.arguments.stage_table import base_stage
from hftune.distributed import nodes
from hftune.errors import UserError
from hftune.on_demand import on_demand
from hftune.preflight.facts import Facts
from hftune.preflight.rules.adapters import check_adapters, check_vocabulary
from hftune.preflight.rules.callbacks import check_callbacks, check_trackers
from hftune.preflight.rules.data import check_data
from hftune.preflight.rules.folders import check_contents, check_folders
from hftune.preflight.rules.kernels import check_kernels
from hftune.preflight.rules.machines import check_machines
from hftune.preflight.rules.model import check_model, check_tiling
from hftune.preflight.rules.optimizer import check_optimizer, check_schedule
from hftune.preflight.rules.parallel import check_parallel
from hftune.preflight.rules.quantisation import check_quantisation
from hftune.preflight.rules.resume import check_resume, check_resumed_settings
from hftune.preflight.rules.without_effect import check_without_effect

Rule = Callable[[Facts], Iterator[UserError]]
"""A pure function from the facts of a run to its problems."""


# In the order in which their problems are listed: machines and folders first, the model itself last.
RULES_OF_ALL: tuple[Rule, ...] = (
    *(check_machines, check_folders, check_contents, check_without_effect),
    *(check_trackers, check_callbacks, check_data),
    *(check_quantisation, check_kernels, check_adapters, check_vocabulary, check_optimizer, check_schedule),
    *(check_parallel, check_tiling, check_resume, check_resumed_settings, check_model),
)
RULES_OF_STAGE = {
    "rm": "hftune.preflight.rules.preference:check_reward",
    "dpo": "hftune.preflight.rules.preference:check_preferences",
    "rl": "hftune.preflight.rules.rl:check_rl",
    "distill": "hftune.preflight.rules.distill:check_distillation",
}


def rules_of(stage: str) -> Iterator[Rule]:
    """The rules that hold for a stage, and those of the stage that it is based on."""
    yield from RULES_OF_ALL
    for name in dict.fromkeys((base_stage(stage), stage)):
        if own := RULES_OF_STAGE.get(name):
            yield on_demand(own)


def check_run(facts: Facts) -> None:
    """Raise every problem of a run, on whichever machine, in one message; nothing has been loaded by then."""
    # All rules are asked before any is raised: a user fixes a command once, not once for each problem.
    found = chain.from_iterable(rule(facts) for rule in rules_of(facts.stage))
    nodes.raise_on_all_ranks([*facts.problems, *found])
