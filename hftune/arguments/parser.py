"""From a command line, and a YAML file where one is given, to dataclasses. What is wrong is said in one message."""

from __future__ import annotations

import argparse
import copy
import functools
import inspect
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from trl import TrlParser

from hftune import terminal
from hftune.arguments.names.row import Row
from hftune.arguments.names.table import table
from hftune.arguments.names.translate import Entry, Outcome, Translator
from hftune.arguments.ranges import (
    JSON_OBJECTS,
    RANGES,
    REMOVED,
    choices_of,
    done_by_hftune,
)
from hftune.arguments.raw_arguments import (
    COMMAND_LINE,
    GIVEN_NAMES,
    LEFT_OUT,
    class_error,
    converted,
    given_in_file,
    given_on_command_line,
    joined,
    take_config,
    yaml_value,
)
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together
from hftune.logging import notice
from hftune.opening.json_file import parse_json
from hftune.stores.located import located
from hftune.visible import as_typed, say


class HftuneParser(TrlParser):
    """transformers' parser, with other tools' names, and errors that name the nearest argument instead of a usage page.

    Args:
        dataclass_types: What is made of the arguments.
        stage: A key of `STAGES`; of another command, such as "merge", its own names count first.
        aliases: Further names of its arguments.
    """

    def __init__(
        self, dataclass_types: Iterable[type], stage: str = "", aliases: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(dataclass_types)
        self.stage = stage
        self.aliases = aliases or {}
        self.done_by_hftune = done_by_hftune(stage)
        for name in (f.name for cls in self.dataclass_types for f in fields(cls) if get_origin(f.type) is dict):
            self.known[name].type = _json_object  # `dict` itself takes no string
        for name in self.known.keys() & JSON_OBJECTS:
            self.known[name].type = _json_object
        for name, choices in choices_of(stage, self.known).items():
            if self.known[name].choices is None:
                self.known[name].choices = choices
        # Annotations are texts; `bool | None` is a switch as well, for which argparse wants a value.
        self.switches = {f.name for cls in self.dataclass_types for f in fields(cls) if "bool" in str(f.type)}
        if "report_to" in self.known:
            self.known["report_to"].nargs = "+"  # several trackers: a union of which argparse knows the text alone

    def print_help(self, file: Any = None) -> None:
        """The page of --help, where the user looks: standard output itself may lead to a log."""
        say(as_typed(self.format_help()), end="", file=file or terminal.out())

    def format_help(self) -> str:
        """hftune's own arguments first, by topic; then those of TRL and transformers."""
        formatter = self.formatter_class(prog=self.prog)
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
        """The dataclasses, one of each type; the command line wins over the YAML file behind `--config`.

        Raises:
            ArgumentError: Unknown or refused names, values that do not fit, a YAML file that cannot be read.
        """
        if {"--help", "-h"} & {*argv}:
            self.print_help()
            raise SystemExit(0)
        entries = located(self.translate(argv))
        chosen = self.run_defaults(entries, [entry.name for entry in read_entries(*take_config(argv))])
        # A variable of the context, not an argument: classes of arguments ask for it while they are made.
        before = GIVEN_NAMES.set(frozenset(entry.name for entry in entries))
        try:
            return self.made(entries, chosen)
        except (ValueError, TypeError, OSError) as error:
            raise class_error(error, self.known, COMMAND_LINE) from error
        finally:
            GIVEN_NAMES.reset(before)

    def made(self, entries: Iterable[Entry], chosen: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """The dataclasses of translated arguments.

        Args:
            chosen: Values of those that were not given.
        """
        given = {self.known[entry.name].dest: self.value_of(entry) for entry in entries}
        return self.parse_dict({**(chosen or {}), **given})

    def run_defaults(self, entries: list[Entry], written: Iterable[str] = ()) -> dict[str, Any]:
        """None; a script whose defaults depend on what was given chooses them here."""
        return {}

    def world(self) -> tuple[int, int]:
        """Processes of the run, and those on this machine, which share a global batch."""
        return 1, 1

    def translate(self, argv: list[str]) -> list[Entry]:
        """Arguments of hftune from a command line: aliases replaced, values translated, what has no effect said.

        Raises:
            ArgumentError: Everything unknown or refused and every value that does not fit, in one message.
        """
        config_path, rest = take_config(argv)
        outcome = self.translated(read_entries(config_path, rest), *self.world())
        raise_together([*outcome.problems, *self.misfits(outcome.entries)])
        for said in outcome.notices:
            notice(said)
        return [Entry(entry.name, joined(entry.name, entry.values), entry.place) for entry in outcome.entries]

    def translated(self, entries: list[Entry], world_size: int, local_world_size: int) -> Outcome:
        """What arguments, each with its place, become here: with all notices and problems, and no side effect."""
        translator = Translator(self.stage, self.known, self.aliases, self.unknown, self.done_by_hftune, REMOVED)
        return translator.translate(entries, world_size, local_world_size)

    def misfits(self, entries: Iterable[Entry]) -> Iterator[ArgumentError]:
        """Values of translated arguments that are out of range, of another type or none of the choices; with places."""
        # One by one: all of them are wanted.
        for entry in entries:
            try:
                self.value_of(entry)
            except ArgumentError as problem:
                yield problem.at(entry.place)

    def value_of(self, entry: Entry) -> Any:
        """What one translated argument is made, as if it stood alone on a command line; None for YAML's null.

        Raises:
            ArgumentError: Its value is of another type, out of range, none of the choices, or one of several where one
                is wanted; no message tells a value that cannot be placed, which may be a secret.
        """
        name, values, action = entry.name, joined(entry.name, entry.values), self.known[entry.name]
        # argparse's class has written over the type of a field that may be None.
        null = values == [None] and (name not in RANGES or type(None) in self.kinds(name))
        if null or self._as_in_file(name, values):
            return yaml_value(values)
        typed = entry.place == COMMAND_LINE
        if action.nargs == 0 and (values or not typed):
            fix = f"write {action.dest}: false"
            raise ArgumentError(f"--{name} is for command lines, and takes no value", place=COMMAND_LINE, fix=fix)
        if action.nargs == 0 or (not values and typed and name in self.switches):
            return action.nargs != 0  # `--no_packing`
        if any(isinstance(value, dict | list) for value in values) and not self.takes_object(name):
            raise ArgumentError(f"--{name} takes no names and values", place=COMMAND_LINE, fix=f"{name}: VALUE")
        if not values:
            fix = f"write --{name} VALUE, or leave it out; `hftune explain {name}`"
            raise ArgumentError(f"--{name} needs a value", place=COMMAND_LINE, fix=fix)
        several_taken = action.nargs == "+"
        if len(values) > 1 and not several_taken:
            cause = f"--{name} takes one value, not {len(values)}"
            raise ArgumentError(cause, place=COMMAND_LINE, fix="give one of them, in quotes if it has spaces")
        found = [converted(action, _word(value)) for value in values]
        return found if several_taken else found[0]

    def _as_in_file(self, name: str, values: list[Any]) -> bool:
        """Whether a field takes what YAML says as it is: an empty list, and forms of a union that argparse drops."""
        kinds, lists = self.kinds(name), self.known[name].nargs == "+"
        if not values:
            return lists or list in kinds
        return (dict in kinds and isinstance(values[0], dict)) or (len(values) > 1 and list in kinds and not lists)

    def kinds(self, name: str) -> set[Any]:
        """The types that a field takes, `dict` for `dict[str, Any]`, as its class says: argparse keeps one of them."""
        hint = self._hints.get(name)
        return {get_origin(kind) or kind for kind in (hint, *get_args(hint))}

    def takes_object(self, name: str) -> bool:
        """Whether names and values may stand behind an argument in a file."""
        return dict in self.kinds(name) or "JSON" in str(self.known[name].help)

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return {name: kind for cls in self.dataclass_types for name, kind in get_type_hints(cls).items()}

    def unknown(self, name: str, place: str) -> ArgumentError:
        """The error for a name that this command does not have."""
        if name in REMOVED:
            return ArgumentError(f"--{name} was removed", place=place, fix=REMOVED[name])
        others = (row.name for row in table().values() if self.takes_name(row))
        # Sorted: of equally near names the same one is proposed every time.
        fix = did_you_mean(name, sorted({*self.known, *self.aliases, *others} - {name}), written="--{}")
        fix = fix or LEFT_OUT.format(name)
        return ArgumentError(f"unknown argument --{name}", place=place, fix=fix)

    def takes_name(self, row: Row) -> bool:
        """Whether a name of another tool leads to arguments of this command."""
        return row.target(self.stage) in self.known or (row.translation is not None and self.stage in STAGES)


def read_entries(config_path: str | None, argv: list[str]) -> list[Entry]:
    """What the file says, then what the command line says; `--learning-rate` is `--learning_rate`."""
    places = ((given_in_file(config_path), config_path or ""), (given_on_command_line(argv), COMMAND_LINE))
    return [Entry(name.replace("-", "_"), values, place) for given, place in places for name, values in given]


def _word(value: object) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)


def _json_object(text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_json(text, "JSON")
    except UserError as problem:
        raise ValueError(text) from problem  # argparse says which argument it is of
    return found


_json_object.__name__ = "JSON object"
"""As argparse names it in a complaint."""


_TITLES = {
    "ModelArguments": "model and tokenizer",
    "DataArguments": "data",
    "AdapterArguments": "adapters and quantised bases",
    "MergeArguments": "merging",
}


def help_groups(classes: Collection[type], actions: Iterable[argparse.Action]) -> dict[str, list[argparse.Action]]:
    """Title -> arguments, in the order in which they are shown.

    Args:
        classes: The dataclasses of the parser, each with those it extends.
        actions: The parser's; those that belong to no class (`--help`) come first.
    """
    groups: dict[str, list[argparse.Action]] = {"options": []}
    for action in actions:
        # A copy without its second spelling, `--learning-rate`, which the parser accepts as well.
        shown = copy.copy(action)
        shown.option_strings = [option for option in action.option_strings if "-" not in option.lstrip("-")]
        groups.setdefault(_title(action.dest, classes), []).append(shown)
    # TRL's before transformers', which has a hundred that few need.
    ours = ["options", *_TITLES.values(), "training"]
    order = sorted(groups, key=lambda title: ([*ours, title].index(title), "transformers" in title))
    return {title: groups[title] for title in order if groups[title]}


def _title(name: str, classes: Collection[type]) -> str:
    """Of the outermost class that defines a field: whoever redefines one has written the help that is shown."""
    bases = (base for cls in classes for base in cls.__mro__ if name in inspect.get_annotations(base))
    owner = next(bases, None)
    if owner is None:
        return "options"
    package = owner.__module__.split(".")[0]
    return (
        f"arguments of {package}'s {owner.__name__}" if package != "hftune" else _TITLES.get(owner.__name__, "training")
    )
