"""The stages: what has to be said of one so that its script, the commands and the records of runs know it."""

from __future__ import annotations

from dataclasses import dataclass

from hftune.errors import ArgumentError


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
    "rm": Stage("reward modelling", "hftune.arguments.preference:RMArguments"),
    "dpo": Stage("DPO", "hftune.arguments.preference:DPOArguments"),
    "distill": Stage("distillation", "hftune.arguments.distill:DistillArguments", based_on="sft"),
    "rl": Stage("RL", "hftune.arguments.rl_algorithms:GRPOArguments"),
}
"""By name, in the order of a pipeline."""


def base_stage(stage: str) -> str:
    """The stage that a stage is based on, or the stage itself; another command's name as it is."""
    return STAGES[stage].based_on or stage if stage in STAGES else stage


def stage_of(word: str) -> str:
    """The stage that `run_sft.py`, `run_sft` or `sft` means; "" where it is none."""
    stage = word.removesuffix(".py").removeprefix("run_")
    return stage if stage in STAGES else ""


def take_script(argv: list[str], command: str) -> tuple[str, list[str]]:
    """The stage of the script that a command line begins with, and the arguments behind it.

    Raises:
        ArgumentError: It begins with something else.
    """
    stage = stage_of(argv[0]) if argv else ""
    if not stage:
        scripts = ", ".join(f"run_{name}" for name in STAGES)
        raise ArgumentError(
            f"`hftune {command}` needs the script whose arguments follow",
            fix=f"hftune {command} run_sft ...; {scripts}",
        )
    return stage, argv[1:]
