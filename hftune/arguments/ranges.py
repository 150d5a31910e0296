"""Which values arguments take: numbers by `ranges.csv`, for every class that has a field of the name; words, fields
that hftune fills itself and names that were removed by `fields.csv`.

A number beyond its range is refused when it is parsed. Upstream takes `--gradient_accumulation_steps -2` or
`--num_train_epochs -1` without a word, and such a run ends as if it had trained. Upper limits are generous: they keep
out slips of the keyboard (a rank of 999999999999) that would fill the memory of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

from hftune.arguments.stage_table import base_stage
from hftune.tables import read_table


@dataclass(frozen=True)
class Range:
    """An interval of numbers, and single ones next to it.

    Args:
        low: Its lower end.
        high: Its upper end.
        above: The lower end itself is left out.
        below: The upper end itself is left out.
        also: Numbers that mean something of their own, such as -1 for all.
        steps: Below 1 a share of all steps, above 1 a number of them, which is whole.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    also: tuple[float, ...] = ()
    steps: bool = False

    @classmethod
    def read(cls, text: str) -> Range:
        """From mathematics: `[1, 1e9]`, `(0, 1]`, `[1, 100] or -1`, `steps [0, 1e12]`."""
        # The notation of mathematics is shorter to read in a table of a hundred rows than keyword arguments.
        match = re.fullmatch(r"(steps )?([\[(])(\S+), (\S+)([\])])((?: or \S+)*)", text)
        assert match is not None, text
        also = tuple(float(word) for word in match[6].split(" or ") if word)
        return cls(float(match[3]), float(match[4]), match[2] == "(", match[5] == ")", also, steps=match[1] is not None)

    def holds(self, value: float) -> bool:
        """Whether a number is in it; NaN is in none."""
        if value in self.also:
            return True
        over = value > self.low if self.above else value >= self.low
        under = value < self.high if self.below else value <= self.high
        # transformers takes 2.5 logging steps, and rounds.
        return over and under and not (self.steps and value > 1 and value != int(value))

    def __str__(self) -> str:
        low = f"above {_shortest(self.low)}" if self.above else f"from {_shortest(self.low)}"
        high = f" and below {_shortest(self.high)}" if self.below else f" to {_shortest(self.high)}"
        also = "".join(f", or {_shortest(value)}" for value in self.also)
        return low + high + (", whole above 1" if self.steps else "") + also


def _shortest(value: float) -> str:
    # Powers of ten up to 15 digits are read more easily written out.
    return f"{int(value):,}" if value == int(value) and 1 <= abs(value) < 1e15 else f"{value:g}"


# A field of the same name means the same in every class; the tests hold it against all classes there are.
RANGES = {
    name: Range.read(row["range"]) for row in read_table(__package__, "ranges.csv") for name in row["names"].split()
}
"""By the name of a field, which means the same in every class that has it."""


def misfit(name: str, value: object) -> str | None:
    """What numbers an argument takes, where this value is another one; words, such as `auto`, are left alone."""
    if name not in RANGES or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if RANGES[name].holds(value) else f"numbers {RANGES[name]}"


_FIELDS = read_table(__package__, "fields.csv")


def _of_kind(kind: str, *stages: str) -> dict[str, str]:
    """What the rows of a kind say of names, for some stages or for all."""
    rows = [row for row in _FIELDS if row["kind"] == kind]
    return {row["name"]: row["says"] for row in rows if not row["stages"] or {*stages} & {*row["stages"].split()}}


REMOVED = _of_kind("removed")
"""Arguments that there were, and what stands in their place."""
FIXES = _of_kind("fix")
"""Ways out where a number of a name is beyond its range."""
SAID = _of_kind("said")
"""Ways out by words of upstream's messages."""
JOINED = _of_kind("joined")
"""What stands between several values of a name, which become one text."""
JSON_OBJECTS = {*_of_kind("object")}
"""Texts that upstream takes for an object of JSON if they begin like one."""


def done_by_hftune(stage: str) -> dict[str, str]:
    """The fields of a stage's trainer that are refused, and why; those of the stage that it is based on as well."""
    return _of_kind("done", base_stage(stage), stage)


def choices_of(stage: str, names: Container[str]) -> dict[str, tuple[str, ...]]:
    """The words that these arguments of a stage take; none for others."""
    found = {name: tuple(words.split()) for name, words in _of_kind("choices", stage).items()}
    if "torch_compile_backend" in names:
        from accelerate.utils import DynamoBackend  # brings torch, which a merge reads its arguments without

        found["torch_compile_backend"] = tuple(one.value.lower() for one in DynamoBackend)
    return {name: choices for name, choices in found.items() if name in names}
