"""Reads `matrix:` of a pipeline: every combination of some values, or combinations with names."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hftune.errors import ArgumentError, UserError
from hftune.secrets import redact, says_secret
from hftune.tools.pipeline.names import check_name
from hftune.tools.pipeline.yaml_positions import Positioned

_MOST = 1000
"""Combinations; of nine lists of nine values it would be 387 million."""


@dataclass(frozen=True)
class Combination:
    """One combination of values.

    Args:
        values: Name to value, for `${NAME}`.
        name: Its name where the file gives one; else it is made from the values.
    """

    values: dict[str, Positioned] = field(default_factory=dict)
    name: str = ""

    def label(self, used: Iterable[str]) -> str:
        """The folder for a stage that depends on the names in `used`; empty for one that depends on none."""
        used = set(used)
        # In the order of the file, so that a folder keeps its name from run to run.
        mine = [name for name in self.values if name in used]
        if not mine:
            return ""
        return self.name or ",".join(f"{name}={_short(self.values[name])}" for name in mine)


def combinations(matrix: Positioned | None, problems: list[UserError]) -> list[Combination]:
    """All combinations, in the order of the file; a single empty one if there is no matrix.

    `{lr: [1e-4, 2e-4], rank: [8, 16]}` makes four; `{small: {lr: 1e-4}, large: {lr: 2e-4}}` makes two with names.
    """
    found = matrix.mapping("matrix", problems) if matrix is not None else {}
    lists = {name: child for name, child in found.items() if isinstance(child.value, list)}
    named = {name: child for name, child in found.items() if isinstance(child.value, dict)}
    odd = [child for name, child in found.items() if name not in lists and name not in named]
    if odd or (lists and named):
        child = (odd or list(named.values()))[0]
        problems.append(
            ArgumentError(
                "matrix holds lists of values, or combinations with names, and not both",
                place=child.name_place,
                fix="lr: [1e-4, 2e-4]; or small: {lr: 1e-4, rank: 8}",
            )
        )
        return [Combination()]
    # Both become folders: names of combinations as they are, those of values as `NAME=VALUE`.
    problems += [problem for name, child in found.items() for problem in check_name(name, child, "a combination")]
    problems += _incomplete(named)
    empty = [child for child in lists.values() if not child.value]
    problems += [
        ArgumentError("an empty list makes no combination", place=child.place, fix="name values") for child in empty
    ]
    number = math.prod(len(child.value) for child in lists.values())
    if number > _MOST:
        cause = f"the lists of matrix make {number:,} combinations, each of which runs all stages"
        problems.append(ArgumentError(cause, place=next(iter(lists.values())).place, fix=f"{_MOST:,} at most"))
        return [Combination()]
    if named:
        return [Combination(child.value, name) for name, child in named.items()]
    return [
        Combination(dict(zip(lists, chosen, strict=True)))
        for chosen in itertools.product(*(child.value for child in lists.values()))
    ]


def secrets_in_names(combinations: Iterable[Combination]) -> Iterator[ArgumentError]:
    """Problems: secrets that would become parts of folders' names. Call it when the steps' secrets are known."""
    for combination in combinations:
        # Folders of named combinations do not show their values.
        for name, child in combination.values.items() if not combination.name else ():
            if _is_secret(name, child):
                fix = "give the combinations names: matrix: {NAME: {...}, ...}"
                cause = f"{name} is a secret, and would be part of a folder's name"
                yield ArgumentError(cause, place=child.place, fix=fix)


def _is_secret(name: str, child: Positioned) -> bool:
    text = str(child.plain)
    return says_secret(name) or redact(text) != text


def _incomplete(named: dict[str, Positioned]) -> Iterable[UserError]:
    """Problems: values that only some combinations have, and that stages could not look up in the others."""
    names = {name for child in named.values() for name in child.value}
    for title, child in named.items():
        missing = sorted(names - set(child.value))
        if missing:
            yield ArgumentError(f"combination {title} lacks {', '.join(missing)}", place=child.name_place, fix="add it")


def _short(item: Positioned) -> str:
    """A value as a part of a folder's name: the last part of a path, at most 40 characters."""
    text = str(item.plain).rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.+-]+", "-", text)[:40] or "none"
