"""What rules say to a script's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from hftune.arguments.entry import parse_arguments
from hftune.distributed import ranks
from hftune.errors import UserError, raise_together
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve

GOOD = {"train_file_dir": ".", "output_dir": "out-that-is-not-there"}
Rule = Callable[[Any], Iterable[UserError]]


def problems(
    model: Path | str,
    *flags: str,
    stage: str = "sft",
    rules: Sequence[Rule] = (),
    processes: int | None = None,
    **given: Any,
) -> str:
    """What is said; empty for nothing. An argument of `GOOD` that is None is left out.

    Args:
        rules: Those to ask; none: all that a run asks, and what was found while it was decided.
        processes: Of a plan, on CPUs: no process group is needed for what is only asked. None: those of a run.
    """
    values = {"model_name_or_path": str(model), **GOOD, **given}
    argv = [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
    world = ranks.PlannedWorld(processes, processes, on_cpu=True) if processes else None
    try:
        with ranks.planning_for(world) if world else nullcontext():
            facts = resolve(stage, parse_arguments(stage, [*argv, *flags]))
            if rules:
                raise_together(chain.from_iterable(rule(facts) for rule in rules))
            else:
                check_run(facts)
    except UserError as error:
        return str(error)
    return ""
