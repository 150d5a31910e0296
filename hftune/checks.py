"""Checks that are data: tables `checks.csv` of packages, what they refuse, and the language of their conditions.

| column | holds                                                                                                    |
| ------ | -------------------------------------------------------------------------------------------------------- |
| topic  | which of the modules beside the table asks                                                               |
| when   | the condition under which a run is refused                                                               |
| cause  | what is wrong; `: reason` of two that do not go together, whose names are then in `place`                 |
| place  | the arguments or keys                                                                                     |
| fix    | the way out; left out: to leave one of them out                                                          |
| example | a command that is refused by this row of the topic alone, which the tests try                            |

`{name}` in a text is the value of an argument. A condition is made of terms with ` & ` between them, all of which must
hold; ` or ` stands between conditions.

| term           | holds where                                                                                      |
| -------------- | ------------------------------------------------------------------------------------------------ |
| `name`         | an argument is on: not False, 0, -1, none or empty                                                |
| `!term`        | the term does not hold                                                                           |
| `name=REGEX`   | the value matches as a whole; of several values, any                                             |
| `name<3`       | a number is that small; `>`, `<=` and `>=` likewise; `%`: it is no multiple                       |

In place of a number there may be another argument's name. A name may lead into what an argument is:
`accelerator_config.split_batches`, `ds_resolved.zero_optimization.stage`. What a stage does not have is off.
`installed.MODULE` is whether Python finds a module.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hftune.errors import ArgumentError, raise_together
from hftune.tables import read_table

_OFF = ("False", "no", "none", "None", "")
_TERM = re.compile(r"(!?)([\w.]+)(?:(<=|>=|=|<|>|%)(.+))?")
_SIGNS: dict[str, Callable[[Any, Any], object]] = {
    **{"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "%": operator.mod}
}


@dataclass(frozen=True)
class Check:
    """A row of checks.csv."""

    topic: str
    when: str
    cause: str
    place: str
    fix: str
    example: str = ""


@functools.cache
def checks(package: str) -> dict[str, list[Check]]:
    """Topic -> its rows, of the table of a package."""
    found = defaultdict(list)
    for cells in read_table(package, "checks.csv"):
        found[cells["topic"]].append(Check(**cells))
    return found


def refused_by(package: str, topic: str, *owners: Any) -> Iterator[ArgumentError]:
    """A problem for each row of a topic whose condition holds.

    Args:
        package: Whose table has the topic.
        owners: Whose attributes the names are: `Facts` for all that is known of a run, or groups of arguments.
    """
    assert topic in checks(package), topic
    for check in checks(package)[topic]:
        if holds(check.when, owners):
            cause, place, fix = (_filled(text, owners) for text in (check.cause, check.place, check.fix))
            if cause.startswith(":"):
                cause = " does not go with ".join(place.split(", ", 1)) + cause
            yield ArgumentError(cause, place=place, fix=fix or "leave one of them out")


def refuse(package: str, topic: str, *owners: Any) -> None:
    """Raise what `refused_by` finds.

    Raises:
        ArgumentError: All of it, in one message.
    """
    raise_together(refused_by(package, topic, *owners))


def holds(condition: str, owners: Sequence[Any]) -> bool:
    """Whether a condition holds for the attributes of these objects."""
    return any(all(_term_holds(term, owners) for term in terms.split(" & ")) for terms in condition.split(" or "))


def _term_holds(term: str, owners: Sequence[Any]) -> bool:
    parts = _TERM.fullmatch(term)
    assert parts is not None, term
    negated, name, sign, right = parts.groups()
    value = value_of(name, owners)
    if sign is None:
        found = not is_off(value)
    elif sign == "=":
        several = value if isinstance(value, list | tuple | frozenset) else [value]
        found = any(re.fullmatch(right, str(getattr(one, "value", one))) for one in several)
    else:
        other = value_of(right, owners) if right[0].isalpha() else float(right)
        numbers = all(isinstance(one, int | float) for one in (value, other))
        found = numbers and bool(_SIGNS[sign](value, other))
    return found != bool(negated)


def is_off(value: Any) -> bool:
    """Whether a value asks for nothing."""
    return not value or str(value) in _OFF or value == -1


def value_of(name: str, owners: Sequence[Any]) -> Any:
    """An attribute of the first that has it, an enum as its text; None where none has it."""
    first, *rest = name.split(".")
    if first == "installed":
        return importlib.util.find_spec(rest[0]) is not None
    groups = [group for owner in owners for group in (*getattr(owner, "arguments", ()), owner)]
    found = next((getattr(group, first) for group in groups if hasattr(group, first)), None)
    for part in rest:
        found = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
    return getattr(found, "value", found)


def _filled(text: str, owners: Sequence[Any]) -> str:
    return re.sub(r"\{([a-z][\w.]*)\}", lambda name: _shown(value_of(name[1], owners)), text)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
