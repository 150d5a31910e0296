"""`hftune plan`: prints its help page at once; everything else is in `command.py`, whose imports take seconds."""

from __future__ import annotations

from hftune.arguments.stage_table import take_script
from hftune.visible import say

HELP = """What a run would need, from the config alone: memory by part, the least change that fits, steps.

hftune plan run_sft --model_name_or_path MODEL --max_length 4096 [all other arguments of the script]

--gpus 8xH200     plan for these devices: {devices},
                  or by memory alone, 4x24GiB. Left out: for those that are here.
--nodes 2         for so many machines alike
--json            one JSON object (bytes) instead of the table

See docs/planning.md for what is counted and how far it was from what was measured."""


def plan(argv: list[str]) -> None:
    """Print what a script would need to run, or the help page."""
    if not argv or {"-h", "--help"} & {*argv}:
        from hftune.preflight.devices import DEVICES

        say(HELP.format(devices=", ".join(DEVICES)))
        return
    stage, rest = take_script(argv, "plan")
    from hftune.tools.planning.command import plan as show

    show(stage, rest)
