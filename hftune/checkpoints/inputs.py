"""The files and folders that a command line names: what a run was made from, for its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.arguments.given import given_in_file, given_on_command_line, take_config
from hftune.checkpoints.contents import record_input
from hftune.distributed.ds_config import SHIPPED

_WRITTEN = {
    "output_dir",
    "logging_dir",
    "cache_dir",
    "data_cache_dir",
    "resume_from_checkpoint",
    "run_name",
    "local_rank",
    "hub_model_id",
}
"""Arguments whose values are written to, or are no part of what a result depends on."""


def record_inputs(argv: list[str]) -> dict[str, dict[str, Any]]:
    """Every existing file and folder that the arguments name, with what it holds."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths_of(argv):
        if path not in found:
            recorded = record_input(path)
            if recorded is not None:
                found[path] = recorded
    return found


def paths_of(argv: list[str]) -> Iterator[str]:
    """What may be a path among the values of a command line and of its `--config` file, which is one itself."""
    config, rest = take_config(argv)
    if config is not None:
        yield config
    for name, values in [*given_in_file(config), *given_on_command_line(rest)]:
        if name not in _WRITTEN:
            for value in values:
                yield from _paths(name, value)


def _paths(name: str, value: object) -> Iterator[str]:
    """`A,B#500` names two paths, `file.py:function` one; a number or a switch none."""
    if not isinstance(value, str) or value.lstrip().startswith(("{", "[")):
        return
    for part in value.split(","):
        text = part.strip().partition("#")[0]
        file, _, _ = text.rpartition(":")
        shipped = SHIPPED / f"{text}.json"
        if name == "deepspeed" and not Path(text).exists() and shipped.is_file():
            yield str(shipped)
        elif text and ("/" in text or Path(text).is_file() or Path(text).is_dir()):
            yield file if file.endswith(".py") else text
        elif file.endswith(".py"):
            yield file
