"""`hftune completion`: prints the script for a shell; it holds all names, so that completing starts no Python."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from hftune.arguments.entry import kept
from hftune.arguments.stage_table import STAGES
from hftune.on_demand import on_demand
from hftune.tools.words import Words
from hftune.visible import say

HELP = """Completion of commands, arguments and their values behind `hftune`.

hftune completion bash > ~/.local/share/bash-completion/completions/hftune      bash, with the package bash-completion
eval "$(hftune completion bash)"                                                bash without it, in ~/.bashrc
eval "$(hftune completion zsh)"                                                 zsh, in ~/.zshrc behind compinit
hftune completion fish > ~/.config/fish/completions/hftune.fish                 fish

The script holds the names of this version: write it again after an update. The first call takes seconds."""

_STARTING = {"nproc": None, "nodes": None, "launcher": ("deepspeed", "torchrun", "srun", "none"), "hostfile": None}
_LONGEST = 70
_FILES = {"zsh": "_files", "fish": "(__fish_complete_path (commandline -ct))"}
"""Not for bash: there what finds nothing falls back to files, and a compgen would hide the flags that may follow."""


def completion(argv: list[str], commands: Mapping[str, str]) -> None:
    """Print a shell's script.

    Args:
        argv: The shell.
        commands: As `whole_command` takes them.

    Raises:
        ArgumentError: No shell, or one that is not known.
    """
    if not argv or {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    words = Words("hftune completion")
    words.add_argument("shell", choices=("bash", "zsh", "fish"))
    shell = words.parse_args(argv).shell
    say(kept("completion", [shell], lambda: script(shell, commands)), end="")


def script(shell: str, commands: Mapping[str, str]) -> str:
    """The script of a shell (bash, zsh or fish) that completes `hftune`."""
    import shtab

    return str(shtab.complete(whole_command(commands), shell))


def whole_command(commands: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of everything.

    Args:
        commands: Subcommand but for the stages -> the class of its arguments, or a dict of classes, as `on_demand`
            takes it; or the stage whose arguments it has; or "", for one whose words only the command knows.
    """
    root = argparse.ArgumentParser("hftune", add_help=False)
    below = root.add_subparsers()
    for stage in STAGES:
        parser = below.add_parser(stage, help=STAGES[stage].task, add_help=False)
        _add_stage(parser, stage)
        for name, choices in _STARTING.items():
            parser.add_argument(f"--{name}", choices=choices, help="how the stage is started")
    for name, where in commands.items():
        parser = below.add_parser(name, help=name, add_help=False)
        if where in STAGES:
            _add_stage(parser, where)
        elif where:
            _add_classes(parser, on_demand(where))
        parser.add_argument("--help", action="store_true", help="what it does")
    return root


def _add_classes(parser: argparse.ArgumentParser, found: Any) -> None:
    from hftune.arguments.parser import HftuneParser  # with torch and transformers, which take seconds

    if not isinstance(found, dict):
        _add_known(parser, HftuneParser([found]).known)
        return
    below = parser.add_subparsers()
    for name, cls in found.items():
        _add_classes(below.add_parser(name, help=name, add_help=False), cls)


def _add_stage(parser: argparse.ArgumentParser, stage: str) -> None:
    from hftune.arguments.stages import algorithms, stage_parser

    known: dict[str, argparse.Action] = {}
    for algorithm in algorithms() if stage == "rl" else [None]:
        known = stage_parser(stage, algorithm).known | known
    _add_known(parser, known)
    config: Any = parser.add_argument("--config", help="YAML file of arguments")
    config.complete = _FILES


def _add_known(parser: argparse.ArgumentParser, known: Mapping[str, argparse.Action]) -> None:
    """Every argument in hftune's spelling: with `-`, and the names of other tools, the list would be thrice as long."""
    from hftune.distributed.ds_config import CONFIGS

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
    """The start of a help text, as far as a line has room."""
    return " ".join(str(text or "").replace("%%", "%").split())[:_LONGEST].replace("%", "%%")
