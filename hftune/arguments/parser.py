"""From a command line, and a YAML file where one is given, to dataclasses. What is wrong is said in one message."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, NoReturn, get_origin

from trl import TrlParser

import hftune.arguments
from hftune import terminal
from hftune.arguments import complaints
from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.aliases import DONE_BY_HFTUNE, DONE_BY_HFTUNE_EVERYWHERE
from hftune.arguments.data import DataArguments
from hftune.arguments.defaults.choosing import choose_defaults, reads_as_medicalgpts, say_differences
from hftune.arguments.given import (
    GIVEN_NAMES,
    LEFT_OUT,
    given_in_file,
    given_on_command_line,
    joined,
    several,
    take_config,
    yaml_value,
)
from hftune.arguments.helping import help_groups
from hftune.arguments.merging import MERGE_ALIASES, MergeArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.names.table import TABLE
from hftune.arguments.names.translate import COMMAND_LINE, MERGE, Entry, Outcome, Translator
from hftune.arguments.ranges import numbers_of, out_of_range
from hftune.arguments.vocabulary import VOCAB_ALIASES, VocabArguments
from hftune.distributed import launch, ranks
from hftune.distributed.slurm import adopt_slurm
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together
from hftune.imports import without_quantisers
from hftune.logging import notice
from hftune.opening.json_file import parse_json
from hftune.visible import say

STAGES = {
    "pt": "PTArguments",
    "sft": "SFTArguments",
    "rm": "RMArguments",
    "dpo": "DPOArguments",
    "rl": "GRPOArguments",
}
"""The training arguments of each stage, in `hftune.arguments`, which makes a class when it is asked for."""

ALGORITHMS = {
    "grpo": "GRPOArguments",
    "rloo": "RLOOArguments",
    "ppo": "PPOArguments",
    "online_dpo": "OnlineDPOArguments",
}
"""Those of each --rl_algorithm."""


class HftuneParser(TrlParser):
    """TRL's parser, with other tools' names, the nearest one for an unknown, and errors instead of a usage page."""

    def __init__(self, dataclass_types: Iterable[type], stage: str | None = None, **kwargs: Any) -> None:
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        self.stage = stage or ""
        self.aliases: dict[str, str] = {}
        self.done_by_hftune = DONE_BY_HFTUNE_EVERYWHERE | DONE_BY_HFTUNE.get(self.stage, {})
        for name in (f.name for cls in self.dataclass_types for f in fields(cls) if get_origin(f.type) is dict):
            self.known[name].type = _json_object  # `dict` itself takes no string
        self.switches = {f.name for cls in self.dataclass_types for f in fields(cls) if "bool" in str(f.type)}
        self.numbers = numbers_of(self.dataclass_types)

    def error(self, message: str) -> NoReturn:
        """argparse's own complaints (a wrong type, a missing value) as ours."""
        raise complaints.of_argparse(message, self.known, COMMAND_LINE)

    def _print_message(self, message: str, file: Any = None) -> None:
        """The page of --help, where the user looks: standard output itself may lead to a log."""
        say(message, end="", file=file if file is not sys.stdout else terminal.out())

    def format_help(self) -> str:
        """hftune's own arguments first, by topic; then those of TRL and transformers."""
        formatter = self._get_formatter()
        formatter.add_usage("%(prog)s [--config FILE.yaml] [--NAME VALUE ...]", [], [])
        for title, actions in help_groups(self.dataclass_types, self._actions).items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(
            "Names of ERNIEKit, Megatron-SWIFT, MedicalGPT and fms-fsdp: docs/parameters.md; hftune explain NAME"
        )
        return formatter.format_help()

    @functools.cached_property
    def known(self) -> dict[str, argparse.Action]:
        """Every argument by its name, without the dashes."""
        return {option.lstrip("-"): action for action in self._actions for option in action.option_strings}

    def parse(self, argv: list[str]) -> tuple[Any, ...]:
        """Dataclasses from `argv`; what the command line says wins over the YAML file behind `--config`.

        Raises:
            ArgumentError: Unknown or refused names, values that do not fit, a YAML file that cannot be read.
        """
        entries = self.translate(argv)
        self.settle_defaults(entries, [entry.name for entry in _entries(*take_config(argv))])
        from_file = {entry.name: yaml_value(entry.values) for entry in entries if entry.place != COMMAND_LINE}
        self.set_defaults_with_config(**from_file)
        before = GIVEN_NAMES.set(frozenset(entry.name for entry in entries))
        try:
            return tuple(self.parse_args_into_dataclasses(args=self._flat(entries), look_for_args_file=False))
        except (ValueError, TypeError) as error:
            raise complaints.of_a_class(error, self.known, COMMAND_LINE) from error
        finally:
            GIVEN_NAMES.reset(before)

    def settle_defaults(self, entries: list[Entry], written: Iterable[str] = ()) -> None:
        """Give arguments that were not given the defaults for what is trained, or those asked for.

        A command of MedicalGPT's that does not say whose defaults it wants is told what differs.

        Args:
            entries: What was given, translated.
            written: The names as they were written.

        Raises:
            ArgumentError: `--defaults` names nobody's.
        """
        if self.stage not in STAGES:
            return
        chosen = choose_defaults(self.stage, entries, self.known)
        asked = any(entry.name == "defaults" for entry in entries)
        if not asked and reads_as_medicalgpts(written, self.known):
            say_differences(self.stage, entries, chosen, self.known)
        self.set_defaults_with_config(**chosen)

    def translate(self, argv: list[str]) -> list[Entry]:
        """Arguments of hftune from a command line: aliases replaced, values translated, what has no effect said.

        Raises:
            ArgumentError: Everything unknown or refused and every number out of its range, in one message.
        """
        config_path, rest = take_config(argv)
        outcome = self.translated(_entries(config_path, rest), ranks.world_size(), ranks.local_world_size())
        doubled = [problem for entry in outcome.entries for problem in several(entry.name, entry.values)]
        raise_together([*outcome.problems, *doubled, *self.out_of_range(outcome.entries)])
        for said in outcome.notices:
            notice(said)
        return [Entry(entry.name, joined(entry.name, entry.values), entry.place) for entry in outcome.entries]

    def translated(self, entries: list[Entry], world_size: int, local_world_size: int) -> Outcome:
        """What arguments, each with its place, become here: with all notices and problems, and no side effect."""
        translator = Translator(self.stage, self.known, self.aliases, self._unknown, self.done_by_hftune)
        return translator.translate(entries, world_size, local_world_size)

    def out_of_range(self, entries: Iterable[Entry]) -> Iterator[ArgumentError]:
        """Numbers among translated arguments that their fields do not take; each at its place."""
        for entry in entries:
            if entry.name in self.numbers:
                yield from out_of_range(self.numbers[entry.name], entry.values, entry.place)

    def misfits(self, entries: Iterable[Entry]) -> Iterator[ArgumentError]:
        """Values of translated arguments that are of another type, none of the choices or out of range; with places."""
        for entry in entries:
            alone = Entry(entry.name, joined(entry.name, entry.values), COMMAND_LINE)
            try:
                raise_together(several(entry.name, entry.values))
                self.parse_known_args(self._flat([alone]))
            except ArgumentError as problem:
                yield ArgumentError(problem.cause, place=entry.place, fix=problem.fix)
            else:
                yield from self.out_of_range([entry])

    def _flat(self, entries: list[Entry]) -> list[str]:
        """The command line that argparse sees. `--bf16` alone means True, also where the field may be None as well."""
        given = [(entry.name, entry.values) for entry in entries if entry.place == COMMAND_LINE]
        given = [(name, values or (["True"] if name in self.switches else [])) for name, values in given]
        return [token for name, values in given for token in (f"--{name}", *map(str, values))]

    def _unknown(self, name: str, place: str) -> ArgumentError:
        if self.stage == "rl" and (algorithms := _algorithms_with(name, self.known)):
            fix = f"it belongs to --rl_algorithm {' and '.join(algorithms)}"
            return ArgumentError(f"--{name} is no argument of this algorithm", place=place, fix=fix)
        scripts = [script for script in scripts_with(name) if script != script_of(self.stage)]
        if scripts:
            cause = f"--{name} is no argument of {script_of(self.stage)}"
            return ArgumentError(cause, place=place, fix=f"it belongs to {', '.join(scripts)}")
        names = {*self.known, *self.aliases, *(other for other, row in TABLE.items() if row.target(self.stage))}
        fix = did_you_mean(name, sorted(names - {name}), written="--{}") or LEFT_OUT.format(name)
        return ArgumentError(f"unknown argument --{name}", place=place, fix=fix)


def _json_object(text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_json(text, "JSON")
    except UserError as problem:
        raise ValueError(text) from problem  # argparse says which argument it is of
    return found


_json_object.__name__ = "JSON object"
"""As argparse names it in a complaint."""


def stage_parser(stage: str, algorithm: str | None = None) -> HftuneParser:
    """The parser of a script.

    Args:
        algorithm: That of RL; left out, or unknown: GRPO.
    """
    training = _arguments_class(ALGORITHMS.get(algorithm or "", STAGES[stage]))
    return HftuneParser([ModelArguments, DataArguments, AdapterArguments, training], stage=stage)


def _arguments_class(name: str) -> type:
    """From `hftune.arguments`; with the first one come transformers and PEFT."""
    with without_quantisers():
        found: type = getattr(hftune.arguments, name)
    return found


def parse_arguments(stage: str, argv: list[str] | None = None) -> tuple[Any, ...]:
    """The four groups of arguments of a stage: model, data, adapter and training.

    Args:
        stage: "pt", "sft", "rm", "dpo" or "rl".
        argv: The command line; left out: the process's own.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    adopt_slurm()
    launch.prepare_environment()
    return parser_for(stage, argv).parse(argv)


def help_of(stage: str, argv: list[str]) -> str:
    """The page that `--help` shows."""
    launch.prepare_environment()
    parser = parser_for(stage, argv)
    with contextlib.suppress(UserError):  # said when the script runs
        parser.settle_defaults(parser.translate(argv))
    return parser.format_help()


def parser_for(stage: str, argv: list[str]) -> HftuneParser:
    """The parser for a command line: that of RL depends on the algorithm."""
    if stage == "rl":
        return stage_parser(stage, _algorithm(argv))
    return stage_parser(stage)


def parse_vocab_arguments(argv: list[str]) -> VocabArguments:
    """The arguments of `hftune vocab`, whatever its subcommand."""
    launch.prepare_environment()
    parser = HftuneParser([VocabArguments])
    parser.aliases = VOCAB_ALIASES
    (vocab_args,) = parser.parse(argv)
    return vocab_args


def _algorithm(argv: list[str]) -> str | None:
    """The RL algorithm, on which the parser depends; also where another tool's name says it."""
    config_path, rest = take_config(argv)
    given = {entry.name: entry.values for entry in _entries(config_path, rest)}
    for name in ("rl_algorithm", "advantage_estimator"):
        if given.get(name):
            return str(given[name][0])
    return "rloo" if "sft_model_path" in given else None


def _algorithms_with(name: str, known: Iterable[str]) -> list[str]:
    """The RL algorithms that have an argument which the chosen one lacks."""
    if name in known:
        return []
    classes = {algorithm: _arguments_class(training) for algorithm, training in ALGORITHMS.items()}
    return [algorithm for algorithm, cls in classes.items() if name in {entry.name for entry in fields(cls)}]


def _entries(config_path: str | None, argv: list[str]) -> list[Entry]:
    """What the file says, then what the command line says; `--learning-rate` is `--learning_rate`."""
    places = ((given_in_file(config_path), config_path or ""), (given_on_command_line(argv), COMMAND_LINE))
    return [Entry(name.replace("-", "_"), values, place) for given, place in places for name, values in given]


def script_of(stage: str) -> str:
    """The script of a stage, or the one that merges; "this command" for another."""
    return f"run_{stage}.py" if stage in STAGES else "merge_peft_adapter.py" if stage == MERGE else "this command"


def scripts_with(name: str) -> list[str]:
    """The scripts that have an argument, under its own or another tool's name."""
    row = TABLE.get(name)
    if row is not None and row.translation is not None:
        return [script_of(stage) for stage in row.stages or STAGES]
    wanted = {stage: (row.target(stage) if row is not None and row.to else name) for stage in STAGES}
    found = [stage for stage, target in wanted.items() if target and target in stage_parser(stage).known]
    merges = name in MERGE_ALIASES or name in {entry.name for entry in fields(MergeArguments)}
    return [script_of(stage) for stage in [*found, *([MERGE] if merges else [])]]
