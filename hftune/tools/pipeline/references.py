"""Resolves `${...}` in a pipeline: values of the file, of a combination, of earlier stages, of the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hftune.errors import ArgumentError
from hftune.tools.pipeline.yaml_positions import Positioned

# The first group is the second $ of an escape; braces do not nest.
_REFERENCE = re.compile(r"\$(\$?)\{([^{}]*)\}")
# Of one stage; a value that names another one twice, thirty times over, would be looked up a billion times.
_MOST = 100_000
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
            made = {name: self.resolve(child, within) for name, child in value.items()}
            return Positioned(made, item.place, item.name_place)
        if isinstance(value, list):
            return Positioned([self.resolve(child, within) for child in value], item.place, item.name_place)
        if not isinstance(value, str) or "${" not in value:
            return item
        # The place stays that of the reference: a problem is solved in that line.
        whole = _REFERENCE.fullmatch(value)
        if whole and not whole[1]:
            found = self._look_up(whole[2].strip(), item.place, within)
            return Positioned(found.value, item.place, item.name_place)
        return Positioned(_REFERENCE.sub(self._text(item.place, within), value), item.place, item.name_place)

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
        if self.count > _MOST:
            cause = f"references lead to more than {_MOST:,} others, the last to ${{{name}}}"
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
