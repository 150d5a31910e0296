"""The script of a shell, made by shtab of a parser of everything."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import shtab

from hftune.arguments.names.row import ALIAS
from hftune.arguments.names.table import table
from hftune.arguments.parser import HftuneParser
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import algorithms, stage_parser
from hftune.distributed.ds_config import CONFIGS
from hftune.on_demand import on_demand

# What stands behind commands whose arguments no class holds: words in their place, and flags.
_WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("plan", "preview", "tokenize"), tuple(STAGES)),
    "init": ("demo", "sft", "pipeline"),
    "launch": ("deepspeed", "torchrun", "python"),
    "pipeline": ("run", "plan", "check"),
    "schema": (*STAGES, "merge", "pipeline"),
    "completion": ("bash", "zsh", "fish"),
}
_FLAGS: dict[str, tuple[str, ...]] = {
    "init": ("--model",),
    "pipeline": ("--from", "--to", "--only", "--force", "--dry_run", "--ignore_gates"),
    "watch": ("--once", "--every"),
    "board": ("--port",),
    "lineage": ("--json",),
    "doctor": ("--quick", "--json"),
}
_STARTING = {"nproc": None, "nodes": None, "launcher": ("deepspeed", "torchrun", "srun", "none"), "hostfile": None}
_LONGEST = 70

_FILES = {"zsh": "_files", "fish": "(__fish_complete_path (commandline -ct))"}
"""Not for bash: there what finds nothing falls back to files, and a compgen would hide the flags that may follow."""


def script(shell: str, commands: Mapping[str, str]) -> str:
    """The script of a shell (bash, zsh or fish) that completes `hftune`; see `whole_command`."""
    return str(shtab.complete(whole_command(commands), shell))


def whole_command(commands: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of everything.

    Args:
        commands: Subcommand but for the stages -> the class of its arguments, or a dict of classes, as `on_demand`
            takes it; or the stage whose arguments it has; or "".
    """
    root = argparse.ArgumentParser("hftune", add_help=False)
    below = root.add_subparsers()
    for stage in STAGES:
        parser = below.add_parser(stage, help=STAGES[stage].task, add_help=False)
        _add_stage(parser, stage)
        for name, choices in _STARTING.items():
            parser.add_argument(f"--{name}", choices=choices, help="how the stage is started")
    for name, arguments in commands.items():
        parser = below.add_parser(name, help=name, add_help=False)
        _add_words(parser, name)
        if arguments:
            _add_arguments(parser, arguments)
        parser.add_argument("--help", action="store_true", help="what it does")
    return root


def _add_words(parser: argparse.ArgumentParser, command: str) -> None:
    words = _WORDS.get(command, ())
    if command == "explain":
        words = tuple(sorted({*stage_parser("sft").known, *(r.name for r in table().values() if r.verdict == ALIAS)}))
        words = tuple(word for word in words if "-" not in word)
    if words:
        parser.add_argument("word", choices=words)
    for flag in _FLAGS.get(command, ()):
        parser.add_argument(flag)


def _add_arguments(parser: argparse.ArgumentParser, where: str) -> None:
    if where in STAGES:
        _add_stage(parser, where)
        return
    found = on_demand(where)
    if isinstance(found, dict):
        below = parser.add_subparsers()
        for name, cls in found.items():
            _add_known(below.add_parser(name, help=name, add_help=False), HftuneParser([cls]).known)
        return
    _add_known(parser, HftuneParser([found]).known)


def _add_stage(parser: argparse.ArgumentParser, stage: str) -> None:
    known: dict[str, argparse.Action] = {}
    for algorithm in algorithms() if stage == "rl" else [None]:
        known = stage_parser(stage, algorithm).known | known
    _add_known(parser, known)
    config: Any = parser.add_argument("--config", help="YAML file of arguments")
    config.complete = _FILES


def _add_known(parser: argparse.ArgumentParser, known: Mapping[str, argparse.Action]) -> None:
    """Every argument in hftune's spelling: with `-`, and the names of other tools, the list would be thrice as long."""
    for name, action in known.items():
        if name != action.dest or action.nargs == 0:
            continue
        kind = getattr(action.type, "__name__", "")
        choices = [str(choice) for choice in action.choices] if action.choices is not None else None
        if kind == "string_to_bool":
            choices = ["True", "False"]
        if name == "deepspeed":
            choices = sorted(file.stem for file in CONFIGS.glob("*.json"))
        several: Any = {"nargs": "+"} if action.nargs == "+" else {}
        # Any: `complete` is an attribute of shtab's own.
        added: Any = parser.add_argument(f"--{name}", choices=choices, help=_short(action.help), **several)
        if choices is None and kind not in ("int", "float"):
            added.complete = _FILES


def _short(text: str | None) -> str:
    """The first sentence of a help text, as far as a line has room."""
    first = " ".join(str(text or "").replace("%%", "%").split()).partition(". ")[0].rstrip(".")
    short = first if len(first) <= _LONGEST else f"{first[: _LONGEST - 3]}..."
    return short.replace("%", "%%")
