"""The table of stages: what has to be said of one so that its script, the commands and the records of runs know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stage of training; its script is `run_NAME.py`.

    Args:
        task: What it does, in the words of model cards.
        arguments: The class of its training arguments, as `hftune.on_demand` takes it: each brings its part of TRL.
        based_on: The stage whose records, row layout, defaults, rules and names of other tools it shares; "": none.
    """

    task: str
    arguments: str
    based_on: str = ""


STAGES = {
    "pt": Stage("pre-training", "hftune.arguments.training:PTArguments"),
    "sft": Stage("supervised fine-tuning", "hftune.arguments.training:SFTArguments"),
    "rm": Stage("reward modelling", "hftune.arguments.reward:RMArguments"),
    "dpo": Stage("DPO", "hftune.arguments.preference:DPOArguments"),
    "distill": Stage("distillation", "hftune.arguments.distill:DistillArguments", based_on="sft"),
    "rl": Stage("RL", "hftune.arguments.rl_algorithms:GRPOArguments"),
}
"""By name, in the order of a pipeline."""


def base_stage(stage: str) -> str:
    """The stage that a stage is based on, or the stage itself; another command's name as it is."""
    return STAGES[stage].based_on or stage if stage in STAGES else stage
