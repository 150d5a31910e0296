"""Commands whose first word is a script, such as `hftune plan run_sft ...`."""

from __future__ import annotations

from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError


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
