"""The inputs of a run's memory arithmetic, and what `--activation_checkpointing auto` makes of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from hftune.distributed import ranks
from hftune.errors import UserError
from hftune.logging import notice
from hftune.preflight.facts import Facts
from hftune.preflight.free_memory import free_memory
from hftune.preflight.memory import Free, ModelSize, Setup, estimate, shortfall
from hftune.preflight.sizes import model_size, run_setup


@dataclass(frozen=True)
class Memory:
    """The inputs of the memory arithmetic.

    Args:
        size: Numbers of parameters.
        setup: How the run keeps them.
        free: What is free now.
    """

    size: ModelSize
    setup: Setup
    free: Free

    @property
    def missing(self) -> str | None:
        """Which memory is too small for weights, gradients and optimizer, and by what; None where they fit."""
        return shortfall(estimate(self.size, self.setup), self.free, self.setup)


def memory_of(facts: Facts) -> Memory | None:
    """The inputs of the memory arithmetic; None, with a notice, where the parameters cannot be counted."""
    if facts.skeleton is None:
        return None
    try:
        size = model_size(facts.skeleton, facts.adapter_args, facts.training_args)
        setup = run_setup(facts.model_args, facts.adapter_args, facts.training_args)
    except (UserError, ValueError, TypeError, NotImplementedError) as problem:
        # A faulty adapter is refused by its own rule; a run that continues must say that memory was not checked.
        notice(f"memory is not checked: {str(problem).splitlines()[0]}")
        return None
    return Memory(size, setup, free_memory(on_cpu=setup.on_cpu, device=ranks.local_rank()))


def choose_recomputed_layers(facts: Facts) -> None:
    """Decide `--activation_checkpointing auto`; only then is the planner asked, which traces the model."""
    memory = memory_of(facts) if facts.model_class is not None else None
    # Where weights and optimizer alone do not fit, recomputing activations is no way out: a rule says what is.
    fits = ranks.all_agree(memory is not None and memory.missing is None)  # choosing is a collective
    if memory is not None and fits:
        # The one place where a run asks a tool, which lies above it: not by `on_demand`, which leads downwards alone.
        tool = importlib.import_module("hftune.tools.planning.least_recomputation")
        tool.choose_layers(facts, memory)
    if facts.training_args.recomputes_least:
        notice("--activation_checkpointing auto: this model is not planned, so that all layers are recomputed")
