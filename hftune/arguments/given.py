"""What a user wrote, on the command line or in a YAML file, as names and values, before any parser has a say."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hftune.arguments.aliases import JOINED
from hftune.arguments.bounded_yaml import load as load_yaml
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.nearby import way_out
from hftune.secrets import command_without_secrets, learn_arguments, learn_config

Given = list[tuple[str, list[Any]]]
COMMAND_LINE = "command line"
LEFT_OUT = "leave it out; `hftune explain {}` knows the names of other tools, --help shows all of this script's"
"""What to do about a name that is like no other."""

GIVEN_NAMES: ContextVar[frozenset[str]] = ContextVar("GIVEN_NAMES", default=frozenset())
"""Arguments that were given, as hftune calls them, while dataclasses are made of them: a default given counts, too."""


def take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    for position, token in enumerate(argv):
        if token.startswith("--config="):
            return token.split("=", 1)[1], _without_config(argv[:position] + argv[position + 1 :])
        if token == "--config":
            if position + 1 == len(argv):
                raise ArgumentError("--config needs a value", place=COMMAND_LINE, fix="write --config FILE.yaml")
            return argv[position + 1], _without_config(argv[:position] + argv[position + 2 :])
    return None, argv


def _without_config(rest: list[str]) -> list[str]:
    """The arguments beside `--config FILE`, which is read once."""
    if any(token.split("=", 1)[0] == "--config" for token in rest):
        fix = "put all of it into one file, or what differs on the command line, which wins over the file"
        raise ArgumentError("--config is given twice", place=COMMAND_LINE, fix=fix)
    return rest


def given_on_command_line(argv: list[str]) -> Given:
    """`--a 1 2 --b=3 --c` as [("a", ["1", "2"]), ("b", ["3"]), ("c", [])]."""
    given: Given = []
    for token in argv:
        if token.startswith("--") or token == "-h":
            name, _, value = token.lstrip("-").partition("=")
            given.append((name, [value] if "=" in token else []))
        elif given:
            given[-1][1].append(token)
        else:
            raise ArgumentError(f"cannot place {token!r}", place=COMMAND_LINE, fix="write --NAME VALUE")
    learn_arguments(given)
    return given


def given_in_file(path: str | None) -> Given:
    if path is None:
        return []
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path}", place="--config", fix=way_out(path, "a YAML file"))
    content = load_yaml(Path(path))
    if not isinstance(content, dict):
        raise ArgumentError("the file must hold names and values", place=path, fix="write name: value, a line each")
    learn_config(content)
    return [(str(name), value if isinstance(value, list) else [value]) for name, value in content.items()]


def means_no(values: list[Any]) -> bool:
    return [str(value).lower() for value in values] in (["false"], ["none"], ["null"], ["no"], ["0"])


def joined(name: str, values: list[Any]) -> list[Any]:
    """Several values as one text where the argument takes a text that may name several."""
    if name in JOINED and len(values) > 1:
        return [JOINED[name].join(map(str, values))]
    return values


def yaml_value(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def without_repeats(given: Given) -> Given:
    """The last value of a name counts; two different ones for one name, through an alias, are said."""
    merged: dict[str, list[Any]] = {}
    for name, values in given:
        if name in merged and merged[name] != values:
            before, after = (command_without_secrets([f"--{name}", *map(str, of)])[1:] for of in (merged[name], values))
            notice(f"--{name} was given twice (an alias counts too): {after} replaces {before}")
        merged[name] = values
    return list(merged.items())
