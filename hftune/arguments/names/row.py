"""A row of the table of parameters: what a name of another tool means, and what becomes of it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hftune.arguments.raw_arguments import given_on_command_line
from hftune.arguments.stage_table import base_stage
from hftune.errors import ArgumentError

Values = list[str]
NamedValues = list[tuple[str, Values]]

WORKS, ALIAS, NO_EFFECT, REFUSED = "works", "alias", "no effect", "refused"


@dataclass(frozen=True)
class Request:
    """What a function that translates values may look at.

    Args:
        given: Its own names, as they were given.
        others: All other arguments of the run under hftune's names, after plain renaming.
        stage: A key of `STAGES`.
        world_size: Number of processes.
        local_world_size: Number of processes on this machine.
    """

    given: Mapping[str, Values]
    others: Mapping[str, Values] = field(default_factory=dict)
    stage: str = "sft"
    world_size: int = 1
    local_world_size: int = 1

    def text(self, *names: str) -> str | None:
        """The value of the first of `names` that was given; a switch without a value is "true"."""
        for name in names:
            if name in self.given:
                return " ".join(self.given[name]) if self.given[name] else "true"
        return None

    def flag(self, *names: str) -> bool | None:
        """Whether the first of `names` that was given is switched on; None where none was."""
        value = self.text(*names)
        return None if value is None else means_yes(value)

    def word(self, name: str, left_out: str = "") -> str:
        """A value in lower case; `left_out` where it was not given."""
        return (self.text(name) or left_out).lower()

    def number(self, name: str, left_out: str = "") -> float:
        """A value as a number.

        Raises:
            ArgumentError: It is none.
        """
        return number(name, self.text(name) or left_out)

    def other(self, name: str) -> str | None:
        """The value of another argument, under hftune's name."""
        return " ".join(self.others[name]) if self.others.get(name) else None


@dataclass(frozen=True)
class Translated:
    """What a translation makes of its arguments: arguments of hftune, and notices."""

    given: NamedValues = field(default_factory=list)
    notices: tuple[str, ...] = ()


def made(*notices: str, **given: str | Values) -> Translated:
    """Arguments of hftune with their values, and what is said of them."""
    return Translated([(name, [value] if isinstance(value, str) else value) for name, value in given.items()], notices)


Translation = Callable[[Request], Translated]


@dataclass(frozen=True)
class Row:
    """One name; the fields are the columns of `names.csv`, which `table.py` tells.

    Args:
        to: The counterpart in hftune: a name, or one for each stage that has one; in words where there are several.
        harmless: Values, in lower case, that ask for what happens anyway: accepted, and said unless they mean "off".
        translation: Where values change as well; rows with the same function are translated together.
        expect: What `example` becomes: arguments and values as they reach the parser.
    """

    name: str
    does: str
    verdict: str
    to: str | Mapping[str, str] = ""
    because: str = ""
    harmless: tuple[str, ...] = ()
    translation: Translation | None = None
    example: str = ""
    expect: tuple[tuple[str, str], ...] = ()
    stages: tuple[str, ...] = ()
    topic: str = ""

    def target(self, stage: str) -> str | None:
        """The counterpart in a stage; None where the stage has none."""
        return self.to if isinstance(self.to, str) else self.to.get(stage) or self.to.get(base_stage(stage))

    def asks_for_nothing(self, values: Values) -> bool:
        """Whether the values ask for what happens anyway; a switch without a value is switched on."""
        asked = " ".join(values).strip().lower() if values else "true"
        # 1 and 1.0, 0 and 0.0: files of other tools write numbers either way.
        return any(asked == value or _same(asked, value) for value in self.harmless)


def means_yes(value: str) -> bool:
    """Whether a value switches something on."""
    return value.strip().lower() in ("true", "1", "yes", "on", "y", "t")


def _same(asked: str, value: str) -> bool:
    """Whether two texts are one number, or both switch on."""
    # `harmless` says "true" for a switch that is on, which users write in six ways.
    if value == "true":
        return means_yes(asked)
    try:
        return float(asked) == float(value)
    except ValueError:
        return False


OFF = ("false", "0", "no", "none", "null", "off", "")
"""Values that switch something off; `OFF` among the harmless values of the table stands for all of them."""


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
        table: Value in lower case -> the counterpart's value, or other arguments (`--name value`); None for one that
            asks for what happens anyway.
        because: Why any other value is refused, and what to use instead; empty: other values stay as they are.
    """

    def one(name: str, request: Request) -> NamedValues:
        value = request.text(name) or ""
        if value.lower() in table:
            found = table[value.lower()]
            if found and found.startswith("--"):
                return given_on_command_line(found.split())
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
