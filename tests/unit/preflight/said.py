"""What `check_run` says to a script's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve

GOOD = {"train_file_dir": ".", "output_dir": "out-that-is-not-there"}


def problems(model: Path | str, *flags: str, stage: str = "sft", **given: Any) -> str:
    """What `check_run` says; empty for nothing. An argument of `GOOD` that is None is left out."""
    values = {"model_name_or_path": str(model), **GOOD, **given}
    argv = [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
    try:
        check_run(resolve(stage, parse_arguments(stage, [*argv, *flags])))
    except UserError as error:
        return str(error)
    return ""
