"""From a command line, and a YAML file where one is given, to dataclasses. What is wrong is said in one message."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import yaml
from trl import TrlParser

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.aliases import (
    ALIASES,
    DONE_BY_HFTUNE,
    DONE_BY_HFTUNE_EVERYWHERE,
    JOINED,
    NO_EFFECT,
    REFUSED,
    STAGE_ALIASES,
)
from hftune.arguments.data import DataArguments
from hftune.arguments.merging import MERGE_ALIASES, MergeArguments
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

STAGES: dict[str, type] = {
    "pt": PTArguments,
    "sft": SFTArguments,
    "rm": RMArguments,
    "dpo": DPOArguments,
    "rl": GRPOArguments,
}
Given = list[tuple[str, list[Any]]]


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
        config_path, argv = _take_config(argv)
        given = self.translate(_given_on_command_line(argv), "command line")
        from_file = self.translate(_given_in_file(config_path), config_path or "")
        self.set_defaults_with_config(**{name: _yaml_value(values) for name, values in from_file})
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
            elif name in self.done_by_hftune and not _means_no(values):
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
        return _without_repeats([(name, _joined(name, values)) for name, values in translated])

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


def parse_merge_arguments(argv: list[str] | None = None) -> MergeArguments:
    """The arguments of `merge_peft_adapter.py`."""
    launch.prepare_environment()
    parser = HftuneParser([MergeArguments])
    parser.aliases = MERGE_ALIASES
    (merge_args,) = parser.parse(list(sys.argv[1:] if argv is None else argv))
    return merge_args


def parse_vocab_arguments(argv: list[str]) -> VocabArguments:
    """The arguments of `hftune vocab`, whatever its subcommand."""
    launch.prepare_environment()
    parser = HftuneParser([VocabArguments])
    parser.aliases = VOCAB_ALIASES
    (vocab_args,) = parser.parse(argv)
    return vocab_args


def _peek(argv: list[str], name: str) -> str | None:
    """The value of one argument before the parser that depends on it exists."""
    config_path, rest = _take_config(list(argv))
    values = dict(_given_in_file(config_path)) | dict(_given_on_command_line(rest))
    found = values.get(name)
    return str(found[0]) if found else None


def _take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    for position, token in enumerate(argv):
        if token.startswith("--config="):
            return token.split("=", 1)[1], argv[:position] + argv[position + 1 :]
        if token == "--config":
            if position + 1 == len(argv):
                raise ArgumentError("--config needs the path of a YAML file")
            return argv[position + 1], argv[:position] + argv[position + 2 :]
    return None, argv


def _given_on_command_line(argv: list[str]) -> Given:
    """`--a 1 2 --b=3 --c` as [("a", ["1", "2"]), ("b", ["3"]), ("c", [])]."""
    given: Given = []
    for token in argv:
        if token.startswith("--") or token == "-h":
            name, _, value = token.lstrip("-").partition("=")
            given.append((name, [value] if "=" in token else []))
        elif given:
            given[-1][1].append(token)
        else:
            raise ArgumentError(f"cannot place {token!r}", place="command line", fix="write --name value")
    return given


def _given_in_file(path: str | None) -> Given:
    if path is None:
        return []
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path}", place="--config", fix="give the path of a YAML file")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ArgumentError(f"not valid YAML: {error}", place=path, fix="mend the file") from error
    if not isinstance(content, dict):
        raise ArgumentError("the file must hold names and values", place=path, fix="write name: value, a line each")
    return [(str(name), value if isinstance(value, list) else [value]) for name, value in content.items()]


def _means_no(values: list[Any]) -> bool:
    return [str(value).lower() for value in values] in (["false"], ["none"], ["null"], ["no"], ["0"])


def _joined(name: str, values: list[Any]) -> list[Any]:
    """Several values as one text where the argument takes a text that may name several."""
    if name in JOINED and len(values) > 1:
        return [JOINED[name].join(map(str, values))]
    return values


def _yaml_value(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _without_repeats(given: Given) -> Given:
    """The last value of a name counts; two different ones for one name, through an alias, are said."""
    merged: dict[str, list[Any]] = {}
    for name, values in given:
        if name in merged and merged[name] != values:
            notice(f"--{name} was given twice (an alias counts too): {values} replaces {merged[name]}")
        merged[name] = values
    return list(merged.items())
