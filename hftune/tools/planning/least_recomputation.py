"""`--activation_checkpointing auto`: the only question that a run asks the planner, before the model loads."""

from __future__ import annotations

from hftune.arguments.training import StageArguments
from hftune.errors import UserError
from hftune.preflight.facts import Facts
from hftune.preflight.run_memory import Memory
from hftune.tools.planning.planner import Planner
from hftune.tools.planning.selecting import choose_recomputed_share


def choose_layers(facts: Facts[StageArguments], memory: Memory) -> None:
    """Set the smallest share of recomputed layers that fits in the arguments. Every rank must call it.

    Args:
        facts: Of the run.
        memory: Its numbers of parameters, and what is free now for this rank.
    """
    planner = Planner(facts, memory.size)
    try:
        choose_recomputed_share(planner, planner.asked(), memory.free, facts.training_args)
    except UserError:
        return  # what is wrong with the attention or the adapter is said by its own rule
