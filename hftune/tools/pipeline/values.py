"""The values of a pipeline: `${...}` of the file, of earlier stages, of the environment; combinations of `matrix:`."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from hftune.errors import ArgumentError
from hftune.tools.pipeline.spec import Positioned, check_name

# The first group is the second $ of an escape; braces do not nest.
_REFERENCE = re.compile(r"\$(\$?)\{([^{}]*)\}")
# Of one stage; a value that names another one twice, thirty times over, would be looked up a billion times.
_MOST_REFERENCES = 100_000
_OF_STAGE = {"output": "output (its folder)", "model": "model (merged)", "data": "data (what was kept)"}


@dataclass
class Names:
    """The values that `${...}` may name.

    Args:
        values: `${NAME}`: of `values:`, a combination of `matrix:`, `model` and `output_dir`; may hold references.
        stages: `${stages.NAME.output}` (the folder that it trains into) and `${stages.NAME.model}` (what the next stage
            loads: merged, where the stage trains an adapter), for the stages before; of one that samples `.data`.
        used: Names that have been looked up.
        count: Times that a name was.
    """

    values: Mapping[str, Positioned]
    stages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    count: int = 0

    def resolve(self, item: Positioned, within: tuple[str, ...] = ()) -> Positioned:
        """The value with every reference replaced; a text that is one reference alone takes the type of its value.

        Raises:
            ArgumentError: A name that is not there, or one that names itself.
        """
        value = item.value
        if isinstance(value, dict):
            return Positioned({name: self.resolve(child, within) for name, child in value.items()}, item.place)
        if isinstance(value, list):
            return Positioned([self.resolve(child, within) for child in value], item.place)
        if not isinstance(value, str) or "${" not in value:
            return item
        # The place stays that of the reference: a problem is solved in that line.
        whole = _REFERENCE.fullmatch(value)
        if whole and not whole[1]:
            found = self._look_up(whole[2].strip(), item.place, within)
            return Positioned(found.value, item.place)
        return Positioned(_REFERENCE.sub(self._text(item.place, within), value), item.place)

    def _text(self, place: str, within: tuple[str, ...]) -> Callable[[re.Match[str]], str]:
        def replaced(match: re.Match[str]) -> str:
            if match[1]:  # `$${x}` is the text `${x}`
                return match[0][1:]
            found = self._look_up(match[2].strip(), place, within)
            if isinstance(found.value, dict | list):
                raise ArgumentError(
                    f"${{{match[2]}}} is no text and cannot stand within one", place=place, fix="use it alone"
                )
            return "" if found.value is None else str(found.value)

        return replaced

    def _look_up(self, name: str, place: str, within: tuple[str, ...]) -> Positioned:
        self.count += 1
        if self.count > _MOST_REFERENCES:
            cause = f"references lead to more than {_MOST_REFERENCES:,} others, the last to ${{{name}}}"
            raise ArgumentError(cause, place=place, fix="write the value out")
        if name.startswith("env."):
            return _variable(name, place)
        if name.startswith("stages."):
            return self._of_stage(name, place)
        if name not in self.values:
            known = sorted([*self.values, "env.NAME", "stages.NAME.model", "stages.NAME.output"])
            raise ArgumentError(f"there is no ${{{name}}}", place=place, fix=f"one of: {', '.join(known)}")
        # `within` has the names on the way here; without it a circle would recurse without end.
        if name in within:
            raise ArgumentError(
                f"${{{name}}} is made from itself: {' -> '.join([*within, name])}", place=place, fix="break the circle"
            )
        # A sweep puts a stage into a folder of its own for the names that it has looked up, directly or not.
        self.used.add(name)
        return self.resolve(self.values[name], (*within, name))

    def _of_stage(self, name: str, place: str) -> Positioned:
        stage, _, what = name.removeprefix("stages.").rpartition(".")
        if stage not in self.stages:
            before = ", ".join(self.stages) or "none"
            raise ArgumentError(
                f"${{{name}}}: no stage before this one is called {stage or what}",
                place=place,
                fix=f"stages before: {before}",
            )
        if what not in self.stages[stage]:
            known = " or ".join(_OF_STAGE[known] for known in self.stages[stage])
            raise ArgumentError(f"${{{name}}}: stage {stage} has no {what}", place=place, fix=known)
        self.used.add(f"stages.{stage}")
        return Positioned(self.stages[stage][what], place)


def _variable(name: str, place: str) -> Positioned:
    """`${env.NAME}`, or `${env.NAME:-DEFAULT}`."""
    variable, dash, default = name.removeprefix("env.").partition(":-")
    value = os.environ.get(variable, default if dash else None)
    if value is None:
        raise ArgumentError(
            f"the environment has no {variable}", place=place, fix=f"export {variable}=..., or ${{{name}:-DEFAULT}}"
        )
    return Positioned(value, place)


_MOST = 1000
"""Combinations; of nine lists of nine values it would be 387 million."""

Combination = dict[str, Positioned]
"""Name to value, for `${NAME}`."""


def combinations(matrix: Positioned | None) -> list[Combination]:
    """All combinations, in the order of the file: `{lr: [1e-4, 2e-4], rank: [8, 16]}` makes four. Without a matrix one.

    Raises:
        ArgumentError: No lists, or too many combinations.
    """
    found = matrix.mapping("matrix") if matrix is not None else {}
    for name, child in found.items():
        check_name(name, child.place, "a combination")
        if not isinstance(child.value, list) or not child.value:
            raise ArgumentError(f"{name} of matrix is no list of values", place=child.place, fix="lr: [1e-4, 2e-4]")
    number = math.prod(len(child.value) for child in found.values())
    if number > _MOST:
        cause = f"the lists of matrix make {number:,} combinations, each of which runs all stages"
        raise ArgumentError(cause, place=next(iter(found.values())).place, fix=f"{_MOST:,} at most")
    chosen = itertools.product(*(child.value for child in found.values()))
    return [dict(zip(found, values, strict=True)) for values in chosen]


def label(combination: Combination, used: Set[str]) -> str:
    """The folder of a stage that depends on the names in `used`; empty for one that depends on none."""
    # In the order of the file, so that a folder keeps its name from run to run.
    return ",".join(f"{name}={_short(value)}" for name, value in combination.items() if name in used)


def _short(item: Positioned) -> str:
    """A value as a part of a folder's name: the last part of a path, at most 40 characters."""
    text = str(item.plain).rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.+-]+", "-", text)[:40] or "none"
