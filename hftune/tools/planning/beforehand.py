"""Before every run: one line of what is planned, and a word where it will probably not fit."""

from __future__ import annotations

from transformers import PreTrainedModel

from hftune.arguments import AdapterArguments, ModelArguments, StageArguments
from hftune.distributed import ranks
from hftune.errors import UserError
from hftune.logging import get_logger, notice
from hftune.preflight.memory import Free, ModelSize
from hftune.tools.planning.candidates import single_changes
from hftune.tools.planning.planner import Choice, Planner
from hftune.tools.planning.report import one_line
from hftune.tools.planning.selecting import settle_recomputation


def say_plan(
    bare: PreTrainedModel,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
    free: Free,
    size: ModelSize,
) -> None:
    """Rank 0 says the planned peak. What probably does not fit is no error: a plan is not certain.

    With `--activation_checkpointing auto` all ranks choose the layers here.

    Args:
        bare: The model on the meta device.
        free: What is free now.
        size: The run's numbers of parameters, which take a while to count.
    """
    if not ranks.is_main() and not training_args.recomputes_least:
        return
    planner = Planner(bare, model_args, adapter_args, training_args, size)
    try:
        asked = planner.asked()
        if training_args.recomputes_least:
            asked = settle_recomputation(planner, asked, free, training_args)
        plan = planner.plan(asked)
    except UserError:
        return  # what is wrong with the attention or the adapter is said by its own rule
    if not ranks.is_main():
        return
    get_logger().info(one_line(plan, asked, free))
    if plan.untraced:
        notice(f"activations of {type(bare).__name__} are by formula, not traced ({plan.untraced}): a rough guess")
    if not plan.fits(free, asked.setup):
        fix = first_that_fits(planner, asked, free)
        notice(
            "this will probably run out of memory at its peak. "
            + (f"To mend it, add {fix}" if fix else "No single change would mend it")
            + "; `hftune plan` shows more ways"
        )


def first_that_fits(planner: Planner, asked: Choice, free: Free) -> str | None:
    """Flags of the first change that makes the run fit: those first that learn the same."""
    changes = list(single_changes(planner, asked))
    same = [one for one in changes if one.adapter is asked.adapter]
    for one in (*same, *(one for one in changes if one.adapter is not asked.adapter)):
        if planner.plan(one).fits(free, one.setup):
            return one.flags
    return None
