"""What a user wrote, on the command line or in a YAML file, as names and values; and what is wrong with them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hftune.arguments.ranges import FIXES, JOINED, SAID, misfit
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together, shown
from hftune.on_demand import on_demand
from hftune.path_hints import path_hint
from hftune.secrets import command_without_secrets, learn_command, learn_config, says_secret

RawArguments = list[tuple[str, list[Any]]]
COMMAND_LINE = "command line"
LEFT_OUT = "leave it out; `hftune explain {}` knows the names of other tools, --help shows all of this script's"
"""What to do about a name that is like no other."""

_NAME = re.compile(r"[\w.-]*")
_ONE_DASH = re.compile(r"-([A-Za-z][\w.-]+)(=|$)")
# En and em dash, horizontal bar, minus and the hyphens of other scripts, alone or next to a real one.
_OTHER_DASHES = re.compile(r"-?[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]+-*([A-Za-z][\w.-]+)")

# Not a global: parsers of a pipeline's check run in one process, one within another.
GIVEN_NAMES: ContextVar[frozenset[str]] = ContextVar("GIVEN_NAMES", default=frozenset())
"""Arguments that were given, as hftune calls them, while dataclasses are made of them: a default given counts, too."""


def take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    """The file that `--config` names, if any, and the other arguments."""
    path, rest, words = None, list[str](), iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--config":
            rest.append(word)
        elif path is not None:
            fix = "put all of it into one file, or what differs on the command line, which wins over the file"
            raise ArgumentError("--config is given twice", place=COMMAND_LINE, fix=fix)
        elif (path := value if equals else next(words, None)) is None:
            raise ArgumentError("--config needs a value", place=COMMAND_LINE, fix="write --config FILE.yaml")
    return path, rest


def given_on_command_line(argv: list[str]) -> RawArguments:
    """`--a 1 2 --b=3 --c` as [("a", ["1", "2"]), ("b", ["3"]), ("c", [])].

    Raises:
        ArgumentError: A word that is neither a name nor behind one; of `-name=value` the value is not told.
    """
    # First: every message below may quote the command line.
    learn_command(argv)
    given: RawArguments = []
    for token in argv:
        if token.startswith("--") or token == "-h":
            name, _, value = token.lstrip("-").partition("=")
            raise_together(bad_name(name, COMMAND_LINE))
            given.append((name, [value] if "=" in token else []))
            continue
        _refuse_stray(given, token)
        given[-1][1].append(token)
    return given


def _refuse_stray(given: RawArguments, token: str) -> None:
    # A secret that begins with a dash would become a name, and be shown as unknown.
    if given and not given[-1][1] and says_secret(given[-1][0]) and token.startswith("-"):
        fix = f"where the value begins with a dash: --{given[-1][0]}=VALUE"
        raise ArgumentError(f"--{given[-1][0]} has no value", place=COMMAND_LINE, fix=fix)
    refuse_one_dash(token)
    if not given:
        fix = f"write --config {token}" if token.endswith((".yaml", ".yml")) else "write --NAME VALUE"
        fix = "write --help" if token == "help" else fix
        raise ArgumentError(f"cannot place {token!r}", place=COMMAND_LINE, fix=fix)


def refuse_one_dash(token: str) -> None:
    """Refuse `-name` and `-name=value`, of which the value is not told: argparse would."""
    written = _ONE_DASH.match(token)
    if written is not None and not _is_number(token):
        fix = f"write it with two dashes: --{written[1]}"
        raise ArgumentError(f"cannot place '-{written[1]}'", place=COMMAND_LINE, fix=fix)
    # Word processors and input methods make them of hyphens; to the shell they are letters of a value.
    if dashed := _OTHER_DASHES.match(token):
        cause = f"'{dashed[0]}' begins with a dash that is no hyphen"
        raise ArgumentError(cause, place=COMMAND_LINE, fix=f"write it with two hyphens: --{dashed[1]}")


def _is_number(token: str) -> bool:
    """-nan and -inf are: of a range, to be refused with its flag."""
    try:
        float(token)
    except ValueError:
        return False
    return True


def bad_name(name: str, place: str) -> list[UserError]:
    """A problem where a name has a value glued to it (`hub_token:X` for `hub_token: X`), which is not told."""
    found = _NAME.match(name)
    if found is None or found[0] == name:
        return []
    cause = f"what begins with {found[0]!r} is no name of an argument"
    return [ArgumentError(cause, place=place, fix="--NAME VALUE on a command line; NAME: VALUE in a file")]


def given_in_file(path: str | None) -> RawArguments:
    """The arguments of a file of YAML, with the places where they stand."""
    if path is None:
        return []
    # Before it is opened: a slip in the path deserves the nearest one, not an error of the system.
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path}", place="--config", fix=path_hint(path, "a YAML file"))
    content = on_demand("hftune.opening.yaml_file:read_yaml")(Path(path))
    if not isinstance(content, dict):
        raise ArgumentError("the file must hold names and values", place=path, fix="write name: value, a line each")
    # The same for a file.
    learn_config(content)
    raise_together(problem for name in content for problem in bad_name(str(name), path))
    return [(str(name), value if isinstance(value, list) else [value]) for name, value in content.items()]


def joined(name: str, values: list[Any]) -> list[Any]:
    """Several values as one text where the argument takes a text that may name several."""
    if name in JOINED and len(values) > 1:
        return [JOINED[name].join(map(str, values))]
    return values


def yaml_value(values: list[Any]) -> Any:
    """The one value, or the list of several."""
    return values[0] if len(values) == 1 else values


def given_twice(name: str, old: list[Any], new: list[Any]) -> str:
    """What is said where the last of two values of a name counts; secrets are `***`, however short."""
    # Through the redaction of commands, which masks by name, also what is too short to be searched for.
    before, after = (command_without_secrets([f"--{name}", *map(str, of)])[1:] for of in (old, new))
    return f"--{name} was given twice (an alias counts too): {after} replaces {before}"


# What an argument takes, by the name of its type.
_TAKES = {
    "int": "a whole number",
    "float": "a number",
    "string_to_bool": "True or False",
    "JSON object": "an object of JSON, such as '{\"name\": 1}'",
}


def converted(action: argparse.Action, word: str) -> Any:
    """What an argument makes of one word.

    Raises:
        ArgumentError: It is of another type, out of range, or none of the choices.
    """
    name = action.option_strings[0].lstrip("-")
    try:
        value = action.type(word) if callable(action.type) else word
        takes = misfit(name, value)
    except (TypeError, ValueError, argparse.ArgumentTypeError):
        value, takes = word, _TAKES.get(getattr(action.type, "__name__", ""), "a text")
    if takes is not None:
        fix = FIXES.get(name) or f"give {takes}, or leave it out; `hftune explain {name}`"
        raise ArgumentError(f"--{name} cannot be {shown(word)!r}: it takes {takes}", place=COMMAND_LINE, fix=fix)
    if action.choices is not None and value not in action.choices:
        choices = [str(choice) for choice in action.choices]
        near = did_you_mean(word, choices, written=f"--{name} {{}}")
        fix = f"{near} one of: {', '.join(choices)}".strip()
        raise ArgumentError(f"--{name} cannot be {shown(word)!r}", place=COMMAND_LINE, fix=fix)
    return value


def class_error(error: Exception, known: Iterable[str], place: str) -> ArgumentError:
    """What `__post_init__` of a class says; the arguments that it names are the place."""
    said = str(error).strip() or type(error).__name__
    # Names with an underscore, and those few without one that transformers' messages mention: prose has none of them.
    words = set(re.findall(r"[a-z][a-z0-9_]*_[a-z0-9_]+|\b(?:bf16|fp16|tf32|optim|deepspeed)\b", said))
    named = sorted(words & set(known))
    flags = [f"--{name}" for name in named]
    explained = ", ".join(f"`hftune explain {name}`" for name in named[:3])
    fix = f"leave out or change {' or '.join(flags)}: {explained}" if named else "change what is named, or leave it out"
    fix = next((way for theirs, way in SAID.items() if theirs in said), fix)
    return ArgumentError(" ".join(said.split()), place=", ".join(flags) or place, fix=fix)
