"""What several translations share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hftune.arguments.names.row import NamedValues, Request, Translated, Translation, means_yes
from hftune.errors import ArgumentError


def cannot(name: str, value: object, because: str) -> ArgumentError:
    """The error for a value without a counterpart.

    Args:
        because: The reason and what to use instead, after a colon.
    """
    return ArgumentError(f"--{name} {value} cannot be used: {because}", fix=f"leave --{name} out, or use what is named")


def number(name: str, value: str) -> float:
    """A number.

    Raises:
        ArgumentError: It is none.
    """
    try:
        return float(value)
    except ValueError as error:
        raise ArgumentError(f"--{name} {value} is not a number", fix=f"write a number, such as --{name} 0.5") from error


def shortest(value: float) -> str:
    """A number as text, whole ones without a fraction."""
    # `--max_steps 30.0` would be refused where a whole number is wanted.
    return str(int(value)) if value == int(value) else str(value)


def each(one: Callable[[str, Request], NamedValues]) -> Translation:
    """A translation name by name, for names that mean the same; where several are given, each has its say."""

    def translate(request: Request) -> Translated:
        return Translated([pair for name in request.given for pair in one(name, request)])

    return translate


def mapped(to: str, table: Mapping[str, str | None], because: str) -> Translation:
    """A translation value by value.

    Args:
        to: The counterpart.
        table: Value in lower case -> the counterpart's value; None for one that asks for what happens anyway.
        because: Why any other value is refused, and what to use instead; empty: other values stay as they are.
    """

    def one(name: str, request: Request) -> NamedValues:
        value = request.text(name) or ""
        if value.lower() in table:
            found = table[value.lower()]
            return [(to, found.split())] if found is not None else []
        if because:
            # Without a counterpart and a reason nothing is guessed.
            raise cannot(name, value, because)
        return [(to, list(request.given[name]))]

    return each(one)


def switched(to: str, on: str | None, off: str | None) -> Translation:
    """A switch that becomes a value: `on` or `off`; None for what happens anyway."""

    def one(name: str, request: Request) -> NamedValues:
        value = on if means_yes(request.text(name) or "") else off
        return [(to, value.split())] if value is not None else []

    return each(one)
