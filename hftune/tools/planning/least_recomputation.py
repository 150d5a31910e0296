"""`--activation_checkpointing auto`: the only question that a run asks the planner, before the model loads."""

from __future__ import annotations

from transformers import PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.errors import UserError
from hftune.preflight.memory import Free, ModelSize
from hftune.tools.planning.planner import Planner
from hftune.tools.planning.selecting import choose_recomputed_share


def choose_layers(
    bare: PreTrainedModel,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
    free: Free,
    size: ModelSize,
) -> None:
    """Set the smallest share of recomputed layers that fits in `training_args`. Every rank must call it.

    Args:
        bare: The model on the meta device.
        free: What is free now, for this rank.
        size: The run's numbers of parameters, which take a while to count.
    """
    planner = Planner(bare, model_args, adapter_args, training_args, size)
    try:
        choose_recomputed_share(planner, planner.asked(), free, training_args)
    except UserError:
        return  # what is wrong with the attention or the adapter is said by its own rule
