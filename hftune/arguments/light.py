"""A parser for scripts that must start at once: one dataclass of plain fields, without transformers, TRL or torch.

What it says of unknown names, aliases and YAML files is what `parser.py` says for the stages.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any, TypeVar

from hftune.arguments.given import (
    LEFT_OUT,
    Given,
    given_in_file,
    given_on_command_line,
    take_config,
    without_repeats,
    yaml_value,
)
from hftune.arguments.merging import MERGE_ALIASES, MERGE_NO_EFFECT, MergeArguments
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together
from hftune.logging import notice
from hftune.visible import say

T = TypeVar("T")


def parse_merge_arguments(argv: list[str] | None = None) -> MergeArguments:
    """The arguments of `merge_peft_adapter.py`.

    Args:
        argv: The command line; left out: the process's own.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    return parse_light(MergeArguments, given, aliases=MERGE_ALIASES, no_effect=MERGE_NO_EFFECT)


def parse_light(cls: type[T], argv: list[str], *, aliases: dict[str, str], no_effect: dict[str, str]) -> T:
    """A dataclass whose fields are texts, numbers and switches; the command line wins over the YAML file of `--config`.

    Args:
        cls: Each field's metadata may have `help` and `choices`.
        argv: The command line.
        aliases: Other names of fields.
        no_effect: Names that are accepted with a notice.

    Raises:
        ArgumentError: Unknown names and values that do not fit, all of them together.
    """
    if {"-h", "--help"} & {*argv}:
        say(usage(cls, aliases))
        raise SystemExit(0)
    path, rest = take_config(argv)
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    problems: list[UserError] = []
    values: dict[str, Any] = {}
    for source, place in ((given_in_file(path), path or ""), (given_on_command_line(rest), "command line")):
        for name, found in _translate(source, known, aliases, no_effect, place, problems):
            try:
                values[name] = _convert(known[name], found)
            except ArgumentError as error:
                problems.append(error)
    raise_together(problems)
    return cls(**values)


def _translate(
    given: Given,
    known: dict[str, Any],
    aliases: dict[str, str],
    no_effect: dict[str, str],
    place: str,
    problems: list[UserError],
) -> Given:
    translated: Given = []
    for written, values in given:
        name = aliases.get(written, written)
        if name in known:
            translated.append((name, values))
        elif name in no_effect:
            notice(f"--{name} has no effect: {no_effect[name]}")
        else:
            fix = did_you_mean(name, [*known, *aliases], written="--{}") or LEFT_OUT.format(name)
            problems.append(ArgumentError(f"unknown argument --{name}", place=place, fix=fix))
    return without_repeats(translated)


def _convert(field: Any, found: list[Any]) -> Any:
    kind = str(field.type)
    values = [value for value in found if value is not None]
    if "bool" in kind:
        return _truth(field.name, values)
    if not values:
        if "choices" in field.metadata and "true" in field.metadata["choices"]:
            return "true"
        raise ArgumentError(
            f"--{field.name} needs a value", place="command line", fix=f"write --{field.name} VALUE, or leave it out"
        )
    if len(values) > 1:
        values = [",".join(map(str, values))]
    value = str(yaml_value(values))
    choices = field.metadata.get("choices")
    if choices and value.lower() not in choices:
        raise ArgumentError(
            f"--{field.name} cannot be {value!r}", place="command line", fix=f"one of: {', '.join(choices)}"
        )
    return value.lower() if choices else value


def _truth(name: str, values: list[Any]) -> bool:
    word = str(values[0]).lower() if values else "true"
    if word in ("true", "yes", "1", "on"):
        return True
    if word in ("false", "no", "0", "off"):
        return False
    raise ArgumentError(f"--{name} cannot be {values[0]!r}", place="command line", fix="True or False")


def usage(cls: type, aliases: dict[str, str]) -> str:
    """All arguments, their defaults and other names."""
    lines = ["arguments (--config FILE.yaml reads them from a file):"]
    for field in fields(cls):
        other = [f"--{alias}" for alias, name in aliases.items() if name == field.name]
        choices = f" One of: {', '.join(field.metadata['choices'])}." if "choices" in field.metadata else ""
        lines.append(f"  --{' '.join([field.name, *other])}  (default: {field.default})")
        lines.append(f"      {field.metadata.get('help', '')}{choices}")
    return "\n".join(lines)
