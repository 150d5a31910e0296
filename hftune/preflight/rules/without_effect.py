"""Arguments that have no effect without another one: one table, one rule, for runs and for `hftune plan`.

An argument that was given and would not be read is refused, whatever its value. Two things are not mistakes: a value
that asks for nothing (False, 0, null), and one next to a switch that was turned off by name (`--use_peft False` in a
command that is kept for both); the latter is said.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hftune.checks import holds, is_off, value_of
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.losses.preference import losses_with
from hftune.preflight.facts import Facts
from hftune.tables import read_table

_FAILS = ("dataloader_num_workers",)
"""Without it upstream does not pass the others over: they are refused next to what was turned off by name, too."""


@dataclass(frozen=True)
class Need:
    """A row of needs.csv.

    Args:
        names: Arguments that are read only where another says so.
        other: That one.
        values: Its values with which they are read; none for all but those that turn it off.
        read: The condition, where more than that value decides.
        example: A command in which they are not, for the tests; "" where a default of its own lets them be read.
    """

    names: tuple[str, ...]
    other: str
    values: tuple[str, ...]
    read: str
    example: str


@functools.cache
def needs() -> list[Need]:
    """The rows of needs.csv; `{smoothed}` and `{unpaired}` are the losses that say so of themselves."""
    found = []
    for row in read_table(__package__, "needs.csv"):
        values, other = row["values"], row["needs"]
        for trait in ("smoothed", "unpaired"):
            values = values.replace(f"{{{trait}}}", "|".join(sorted(losses_with(trait))))
        read = row["read"] or (f"{other}={values}" if values else other)
        allowed = tuple(filter(None, values.split("|")))
        found.append(Need(tuple(row["names"].split()), other, allowed, read, row["example"]))
    return found


def check_without_effect(facts: Facts[Any]) -> Iterator[UserError]:
    """Problems of arguments that were given and that nothing reads, those with one cause together."""
    left = set(facts.training_args.given)
    for need in needs():
        named = [name for name in need.names if name in left and not is_off(value_of(name, [facts]))]
        there = any(hasattr(group, need.other) for group in facts.arguments)
        if named and there and not holds(need.read, [facts]):
            left -= {*named}
            yield from _refuse_or_say(facts, need, [f"--{name}" for name in named])
    # The one that another takes away rather than brings; MedicalGPT's scripts give both.
    data = facts.arguments.data
    if "validation_split_percentage" in left and data.validation_file_dir and data.validation_split_percentage > 0:
        notice("--validation_split_percentage has no effect with --validation_file_dir: its records are held out")


def _refuse_or_say(facts: Facts[Any], need: Need, named: list[str]) -> Iterator[UserError]:
    value = value_of(need.other, [facts])
    have = f"{', '.join(named)} {'has' if len(named) == 1 else 'have'} no effect"
    if need.other in facts.training_args.given and is_off(value) and need.other not in _FAILS:
        notice(f"{have} with --{need.other} {value}")
        return
    needed = f"--{need.other}" + (f" {' or '.join(need.values)}" if need.values else "")
    fix = f"add {needed}, or leave {'it' if len(named) == 1 else 'them'} out"
    yield ArgumentError(f"{have} without {needed}", place=", ".join(named), fix=fix)
