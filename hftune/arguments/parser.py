"""From a command line, and a YAML file where one is given, to dataclasses. What is wrong is said in one message."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NoReturn

from trl import TrlParser

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.aliases import (
    ALIASES,
    DONE_BY_HFTUNE,
    DONE_BY_HFTUNE_EVERYWHERE,
    NO_EFFECT,
    REFUSED,
    STAGE_ALIASES,
)
from hftune.arguments.data import DataArguments
from hftune.arguments.given import (
    Given,
    given_in_file,
    given_on_command_line,
    joined,
    means_no,
    take_config,
    without_repeats,
    yaml_value,
)
from hftune.arguments.light import parse_merge_arguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import (
    DPOArguments,
    GRPOArguments,
    PTArguments,
    RLOOArguments,
    RMArguments,
    SFTArguments,
)
from hftune.arguments.vocabulary import VOCAB_ALIASES, VocabArguments
from hftune.distributed import launch
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice

__all__ = ["STAGES", "HftuneParser", "parse_arguments", "parse_merge_arguments"]

STAGES: dict[str, type] = {
    "pt": PTArguments,
    "sft": SFTArguments,
    "rm": RMArguments,
    "dpo": DPOArguments,
    "rl": GRPOArguments,
}


class HftuneParser(TrlParser):
    """TRL's parser, with aliases, the nearest name for an unknown one, and errors instead of a usage page."""

    def __init__(self, dataclass_types: Iterable[type], stage: str | None = None, **kwargs: Any) -> None:
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        self.done_by_hftune = DONE_BY_HFTUNE_EVERYWHERE | DONE_BY_HFTUNE.get(stage or "", {})
        self.aliases = ALIASES | STAGE_ALIASES.get(stage or "", {})
        self.switches = {f.name for cls in self.dataclass_types for f in fields(cls) if "bool" in str(f.type)}

    def error(self, message: str) -> NoReturn:
        """argparse's own complaints (a wrong type, a missing value) as ours."""
        raise ArgumentError(message, fix="see --help")

    @property
    def known(self) -> dict[str, argparse.Action]:
        """Every argument by its name, without the dashes."""
        return {option.lstrip("-"): action for action in self._actions for option in action.option_strings}

    def parse(self, argv: list[str]) -> tuple[Any, ...]:
        """Dataclasses from `argv`; what the command line says wins over the YAML file behind `--config`.

        Raises:
            ArgumentError: Unknown or refused names, values that do not fit, a YAML file that cannot be read.
        """
        config_path, argv = take_config(argv)
        given = self.translate(given_on_command_line(argv), "command line")
        from_file = self.translate(given_in_file(config_path), config_path or "")
        self.set_defaults_with_config(**{name: yaml_value(values) for name, values in from_file})
        # `--bf16` alone means True, also where the field may be None as well.
        given = [(name, values or (["True"] if name in self.switches else [])) for name, values in given]
        flat = [token for name, values in given for token in (f"--{name}", *map(str, values))]
        try:
            return tuple(self.parse_args_into_dataclasses(args=flat, look_for_args_file=False))
        except (ValueError, TypeError) as error:
            raise ArgumentError(str(error), fix="see --help") from error

    def translate(self, given: Given, place: str) -> Given:
        """Replace aliases, say what has no effect, and refuse what is unknown, all at once."""
        problems, translated = [], []
        for name, values in given:
            if name in self.aliases:
                translated.append((self.aliases[name], values))
            elif name in self.done_by_hftune and not means_no(values):
                problems.append(ArgumentError(f"--{name} cannot be used: {self.done_by_hftune[name]}", place=place))
            elif name in self.known:
                translated.append((name, values))
            elif name in REFUSED:
                problems.append(ArgumentError(f"--{name} cannot be used: {REFUSED[name]}", place=place))
            elif name in NO_EFFECT:
                notice(f"--{name} has no effect: {NO_EFFECT[name]}")
            else:
                problems.append(self._unknown(name, place))
        raise_together(problems)
        return without_repeats([(name, joined(name, values)) for name, values in translated])

    def _unknown(self, name: str, place: str) -> ArgumentError:
        near = difflib.get_close_matches(name, [*self.known, *self.aliases], n=1, cutoff=0.6)
        fix = f"did you mean --{near[0]}?" if near else "see --help for all arguments"
        return ArgumentError(f"unknown argument --{name}", place=place, fix=fix)


def parse_arguments(stage: str, argv: list[str] | None = None) -> tuple[Any, ...]:
    """The four groups of arguments of a stage: model, data, adapter and training.

    Args:
        stage: "pt", "sft", "rm", "dpo" or "rl".
        argv: The command line; left out: the process's own.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    launch.prepare_environment()
    training = STAGES[stage]
    if stage == "rl" and _peek(argv, "rl_algorithm") == "rloo":
        training = RLOOArguments
    parser = HftuneParser([ModelArguments, DataArguments, AdapterArguments, training], stage=stage)
    return parser.parse(argv)


def parse_vocab_arguments(argv: list[str]) -> VocabArguments:
    """The arguments of `hftune vocab`, whatever its subcommand."""
    launch.prepare_environment()
    parser = HftuneParser([VocabArguments])
    parser.aliases = VOCAB_ALIASES
    (vocab_args,) = parser.parse(argv)
    return vocab_args


def _peek(argv: list[str], name: str) -> str | None:
    """The value of one argument before the parser that depends on it exists."""
    config_path, rest = take_config(list(argv))
    values = dict(given_in_file(config_path)) | dict(given_on_command_line(rest))
    found = values.get(name)
    return str(found[0]) if found else None
