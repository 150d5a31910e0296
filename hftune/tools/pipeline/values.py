"""The values of a pipeline: `${...}` of the file, of earlier stages, of the environment; combinations of `matrix:`."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from hftune.errors import ArgumentError
from hftune.tools.pipeline.spec import Block, check_name

# The first group is the second $ of an escape; braces do not nest.
_REFERENCE = re.compile(r"\$(\$?)\{([^{}]*)\}")
# Of one stage; a value that names another one twice, thirty times over, would be looked up a billion times.
_MOST_REFERENCES = 100_000


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

    values: Block
    stages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    count: int = 0

    def of(self, block: Block) -> Block:
        """A block with every reference replaced; a text that is one reference alone takes the type of its value.

        Raises:
            ArgumentError: A name that is not there, or one that names itself.
        """
        return Block({name: self.value(block, name) for name in block}, block.places)

    def value(self, block: Block, name: str) -> Any:
        """Likewise for what stands behind one name; None where nothing does."""
        return self._resolve(block.get(name), block.places.get(name, ""), ())

    def _resolve(self, value: Any, place: str, within: tuple[str, ...]) -> Any:
        if isinstance(value, Block):
            told = {name: self._resolve(child, value.places.get(name, place), within) for name, child in value.items()}
            return Block(told, value.places)
        if isinstance(value, list):
            return [self._resolve(child, place, within) for child in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole and not whole[1]:
            return self._look_up(whole[2].strip(), place, within)
        return _REFERENCE.sub(lambda match: self._text(match, place, within), value)

    def _text(self, match: re.Match[str], place: str, within: tuple[str, ...]) -> str:
        if match[1]:  # `$${x}` is the text `${x}`
            return match[0][1:]
        found = self._look_up(match[2].strip(), place, within)
        if isinstance(found, dict | list):
            cause = f"${{{match[2]}}} is no text and cannot stand within one"
            raise ArgumentError(cause, place=place, fix="use it alone")
        return "" if found is None else str(found)

    def _look_up(self, name: str, place: str, within: tuple[str, ...]) -> Any:
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
            cause = f"${{{name}}} is made from itself: {' -> '.join([*within, name])}"
            raise ArgumentError(cause, place=place, fix="break the circle")
        # A sweep puts a stage into a folder of its own for the names that it has looked up, directly or not.
        self.used.add(name)
        return self._resolve(self.values[name], self.values.places.get(name, place), (*within, name))

    def _of_stage(self, name: str, place: str) -> str:
        stage, _, what = name.removeprefix("stages.").rpartition(".")
        if stage not in self.stages:
            cause = f"${{{name}}}: no stage before this one is called {stage or what}"
            raise ArgumentError(cause, place=place, fix=f"stages before: {', '.join(self.stages) or 'none'}")
        if what not in self.stages[stage]:
            cause = f"${{{name}}}: stage {stage} has no {what}"
            raise ArgumentError(cause, place=place, fix=f"one of: {', '.join(self.stages[stage])}")
        self.used.add(f"stages.{stage}")
        return self.stages[stage][what]


def _variable(name: str, place: str) -> str:
    """`${env.NAME}`, or `${env.NAME:-DEFAULT}`."""
    variable, dash, default = name.removeprefix("env.").partition(":-")
    value = os.environ.get(variable, default if dash else None)
    if value is None:
        fix = f"export {variable}=..., or ${{{name}:-DEFAULT}}"
        raise ArgumentError(f"the environment has no {variable}", place=place, fix=fix)
    return value


_MOST = 1000
"""Combinations; of nine lists of nine values it would be 387 million."""


def combinations(matrix: Block) -> list[Block]:
    """All combinations, in the order of the file: `{lr: [1e-4, 2e-4], rank: [8, 16]}` makes four. Without a matrix one.

    Raises:
        ArgumentError: No lists, or too many combinations.
    """
    for name, values in matrix.items():
        check_name(name, matrix.places[name], "a combination")
        if not isinstance(values, list) or not values:
            cause = f"{name} of matrix is no list of values"
            raise ArgumentError(cause, place=matrix.places[name], fix="lr: [1e-4, 2e-4]")
    number = math.prod(map(len, matrix.values()))
    if number > _MOST:
        cause = f"the lists of matrix make {number:,} combinations, each of which runs all stages"
        raise ArgumentError(cause, place=next(iter(matrix.places.values())), fix=f"{_MOST:,} at most")
    chosen = itertools.product(*matrix.values())
    return [Block(dict(zip(matrix, values, strict=True)), matrix.places) for values in chosen]


def label(combination: Block, used: Set[str]) -> str:
    """The folder of a stage that depends on the names in `used`; empty for one that depends on none."""
    # In the order of the file, so that a folder keeps its name from run to run.
    return ",".join(f"{name}={_short(value)}" for name, value in combination.items() if name in used)


def _short(value: object) -> str:
    """A value as a part of a folder's name: the last part of a path, at most 40 characters."""
    text = str(value).rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.+-]+", "-", text)[:40] or "none"
