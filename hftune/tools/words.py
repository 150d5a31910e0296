"""The words of a subcommand with few flags, read without the parsers of the scripts, which bring torch along."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from hftune.errors import ArgumentError, did_you_mean

NONE: Mapping[str, str] = MappingProxyType({})


def taken(
    command: str, argv: list[str], switches: Collection[str] = (), values: Mapping[str, str] = NONE
) -> tuple[list[str], dict[str, str]]:
    """The words that are no flags, and the flags that were given with their values, switches with "".

    Args:
        command: What the user typed, `hftune watch`.
        switches: Flags without a value.
        values: Flags with one, and an example of it.

    Raises:
        ArgumentError: A flag that the command does not have, or one without its value.
    """
    words, given, left = [], dict[str, str](), iter(argv)
    for word in left:
        name, equals, value = word.partition("=")
        if name in values:
            value = value if equals else next(left, "")
            if not value or value.startswith("--"):
                raise ArgumentError(f"{name} needs a value", place=command, fix=f"{name} {values[name]}")
            given[name] = value
        elif word in switches:
            given[word] = ""
        elif word.startswith("-"):
            near = did_you_mean(name, [*switches, *values])
            raise ArgumentError(f"`{command}` has no {name}", place=command, fix=f"{near} {command} --help".strip())
        else:
            words.append(word)
    return words, given
