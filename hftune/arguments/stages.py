"""The parsers of the stages' scripts and of the commands that need no stage."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.data import DataArguments
from hftune.arguments.defaults.choosing import MEDICALGPTS, choose_defaults, looks_like_medicalgpt
from hftune.arguments.model import ModelArguments
from hftune.arguments.names.table import table
from hftune.arguments.names.translate import MERGE, Entry
from hftune.arguments.parser import HftuneParser, read_entries
from hftune.arguments.ranges import REMOVED
from hftune.arguments.raw_arguments import take_config
from hftune.arguments.stage_table import STAGES
from hftune.distributed import launch, ranks
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.on_demand import on_demand

_MERGING = "hftune.arguments.merging:MergeParser"


T = TypeVar("T")


class ScriptParser(HftuneParser):
    """The parser of a stage's script, or of a command that knows the scripts: whose defaults, and who has a name."""

    def world(self) -> tuple[int, int]:
        """Overrides `HftuneParser.world`: a script is one of several processes."""
        return ranks.world_size(), ranks.local_world_size()

    def run_defaults(self, entries: list[Entry], written: Iterable[str] = ()) -> dict[str, Any]:
        """Overrides `HftuneParser.run_defaults`: those for what is trained, or those asked for.

        A command of MedicalGPT's that does not say whose defaults it wants is told that these are others.

        Args:
            entries: What was given, translated.
            written: The names as they were written.
        """
        # `hftune ask` and its like share this parser, and have no defaults by what is trained.
        if self.stage not in STAGES:
            return {}
        # They depend on what is trained, which other arguments say.
        chosen = choose_defaults(self.stage, entries, self.known)
        asked = any(entry.name == "defaults" for entry in entries)
        if not asked and looks_like_medicalgpt(written, self.known):
            notice(MEDICALGPTS)
        return chosen

    def unknown(self, name: str, place: str) -> ArgumentError:
        """Overrides `HftuneParser.unknown`: names the algorithm or the scripts that have the argument."""
        if self.stage == "rl" and (algorithms := _algorithms_with(name, self.known)):
            fix = f"it belongs to --rl_algorithm {' and '.join(algorithms)}"
            return ArgumentError(f"--{name} is no argument of this algorithm", place=place, fix=fix)
        if name in REMOVED and not self.stage:
            return super().unknown(name, place)
        scripts = [script for script in scripts_with(name) if script != script_of(self.stage)]
        if scripts:
            cause = f"--{name} is no argument of {script_of(self.stage)}"
            return ArgumentError(cause, place=place, fix=f"it belongs to {', '.join(scripts)}")
        return super().unknown(name, place)


def stage_parser(stage: str, algorithm: str | None = None) -> ScriptParser:
    """The parser of a script.

    Args:
        algorithm: That of RL; left out, or unknown: GRPO.
    """
    # Before transformers and peft come with the first class: libraries read some variables once, at their import.
    launch.prepare_environment()
    training = algorithms().get(algorithm or "") if stage == "rl" else None
    training = training or on_demand(STAGES[stage].arguments)
    return ScriptParser([ModelArguments, DataArguments, AdapterArguments, training], stage=stage)


def algorithms() -> dict[str, type[Any]]:
    """The training arguments of each --rl_algorithm; TRL is imported when they are asked for."""
    return cast(dict[str, type[Any]], on_demand("hftune.arguments.rl_algorithms:ALGORITHMS"))


# Texts about names ask for the same few parsers.
@functools.cache
def known_arguments(stage: str) -> Mapping[str, argparse.Action]:
    """The arguments of a script by name, as its parser defines them; of RL those of every algorithm."""
    parsers = [stage_parser(stage, algorithm) for algorithm in (algorithms() if stage == "rl" else [None])]
    return {name: action for parser in reversed(parsers) for name, action in parser.known.items()}


def parse_stage(stage: str, argv: list[str]) -> tuple[Any, ...]:
    """The four groups of arguments of a stage.

    Raises:
        ArgumentError: Everything that is wrong with them, in one message.
    """
    if "SLURM_STEP_NUM_TASKS" in os.environ:  # set by srun alone
        on_demand("hftune.distributed.launchers:adopt_slurm")()
    return parser_for(stage, argv).parse(argv)


def parse_command(cls: type[T], argv: list[str], aliases: Mapping[str, str] | None = None) -> T:
    """The arguments of a command whose argument types one class holds."""
    (found,) = ScriptParser([cls], aliases=aliases).parse(argv)
    return cast(T, found)


def help_of(stage: str, argv: list[str]) -> str:
    """The page that `--help` shows."""
    parser = parser_for(stage, argv)
    # A page of help is shown for a wrong command line, too; what is wrong is said when the script runs.
    with contextlib.suppress(UserError):
        parser.set_defaults(**parser.run_defaults(parser.translate(argv)))
    return parser.format_help()


def parser_for(stage: str, argv: list[str]) -> ScriptParser:
    """The parser for a command line: that of RL depends on the algorithm."""
    if stage == "rl":
        return stage_parser(stage, _algorithm(argv))
    return stage_parser(stage)


def _algorithm(argv: list[str]) -> str | None:
    """The RL algorithm, on which the parser depends; also where another tool's name says it."""
    # Read twice, here and by the parser: which class is parsed for depends on what the file says.
    config_path, rest = take_config(argv)
    given = {entry.name: entry.values for entry in read_entries(config_path, rest)}
    for name in ("rl_algorithm", "advantage_estimator"):
        if given.get(name):
            return str(given[name][0])
    if given.get("rlhf_type") == ["ppo"]:  # ms-swift's
        return "ppo"
    # MedicalGPT's PPO script, which trains with RLOO, is known by this name.
    return "rloo" if "sft_model_path" in given else None


def _algorithms_with(name: str, known: Iterable[str]) -> list[str]:
    """The RL algorithms that have an argument which the chosen one lacks."""
    if name in known:
        return []
    return [algorithm for algorithm, cls in algorithms().items() if name in {entry.name for entry in fields(cls)}]


def script_of(stage: str) -> str:
    """The script of a stage, or the one that merges; "this command" for another."""
    return f"run_{stage}.py" if stage in STAGES else "merge_peft_adapter.py" if stage == MERGE else "this command"


def scripts_with(name: str) -> list[str]:
    """The scripts that have an argument, under its own or another tool's name."""
    # Another tool's name leads to the script that has what it stands for.
    row = table().get(name)
    if row is not None and row.translation is not None:
        return [script_of(stage) for stage in row.stages or STAGES]
    wanted = {stage: (row.target(stage) if row is not None and row.to else name) for stage in STAGES}
    found = [stage for stage, target in wanted.items() if target and target in known_arguments(stage)]
    merging = on_demand(_MERGING)()
    merges = name in merging.aliases or name in merging.known
    return [script_of(stage) for stage in [*found, *([MERGE] if merges else [])]]
