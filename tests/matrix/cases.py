"""The matrix: cases drawn by a pairwise generator, each with one thing that is changed and must not matter."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations

from allpairspy import AllPairs

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "stage": ("pt", "sft", "rm", "dpo", "kto", "distill", "grpo", "rloo", "ppo", "online_dpo"),
    "change": (
        *("processes", "cut", "resume", "workers", "layout", "zero1", "zero2", "zero3", "recomputation"),
        *("recording", "unscored"),
    ),
    "method": ("full", "lora"),
    "head": ("tied", "untied"),
    "precision": ("fp32", "bf16"),
    "recomputed": ("full", "none"),
    "layout": ("padded", "flat", "shared"),
    "order": ("shuffled", "by_length", "streamed", "mixed", "packed"),
    "workers": ("0", "2"),
    "rewards": ("all", "some"),
    "rounds": ("one", "iterations", "halves"),
    "batches": ("whole", "empty"),
}
"""Of each, the first value is what all stages have."""

ONLINE = ("grpo", "rloo", "ppo", "online_dpo")
_SUPERVISED = ("sft", "rm", "dpo", "kto", "distill")
SHARING_OUT = ("processes", "zero1", "zero2", "zero3")

_SECONDS = {"processes": 1.5, "zero1": 1.5, "zero2": 1.5, "zero3": 4}
"""Of a CPU, of both runs: changes that take longer than others."""

STAGES_WITH: dict[tuple[str, str], tuple[str, ...]] = {
    ("order", "streamed"): ("pt", "sft"),
    ("order", "packed"): ("sft", "distill"),
    ("order", "by_length"): _SUPERVISED,
    ("layout", "flat"): _SUPERVISED,
    ("layout", "shared"): ("dpo", "kto", "grpo", "rloo"),
    ("change", "layout"): (*_SUPERVISED, "grpo", "rloo"),
    ("change", "recording"): ("grpo", "rloo", "online_dpo"),
    ("change", "unscored"): ONLINE,
    ("rewards", "some"): ONLINE,
    ("batches", "empty"): ("pt", *_SUPERVISED, "grpo", "rloo", "ppo"),
    ("rounds", "iterations"): ("grpo", "rloo", "ppo"),
    ("rounds", "halves"): ONLINE,
}
"""Values that only some stages have."""

IMPOSSIBLE: tuple[dict[str, tuple[str, ...]], ...] = (
    # Nobody's order but the readers': no end of an epoch leaves a batch short.
    {"order": ("streamed", "packed"), "batches": ("empty",)},
    {"order": ("packed",), "layout": ("padded", "shared")},
    {"order": ("packed",), "change": ("layout",)},
    # A mixture of blocks of the stream is made by each reader.
    {"stage": ("pt",), "order": ("streamed",), "change": (*SHARING_OUT, "workers", "cut")},
    # In 16 bits another order of sums is another answer, and from there on another run.
    {"stage": ONLINE, "precision": ("bf16",), "change": ("cut", "layout", "unscored", *SHARING_OUT)},
    # The reference point is the mean of a micro batch (`--loss_type kto`).
    {"stage": ("kto",), "change": ("cut",)},
    # Which answers share an optimizer step is drawn by each process for its own.
    {"rounds": ("halves",), "change": ("cut", *SHARING_OUT)},
)
"""Values that do not meet."""


@dataclass(frozen=True)
class Case:
    """A run, and what is changed in the second one; each field but the last two is a key of its dimension.

    Attributes:
        draw: Decides what is left open: at which step a run stops, how a batch is cut.
        option: An argument of the stage beside these, in both runs.
    """

    stage: str
    change: str
    method: str = "full"
    head: str = "tied"
    precision: str = "fp32"
    recomputed: str = "full"
    layout: str = "padded"
    order: str = "shuffled"
    workers: str = "0"
    rewards: str = "all"
    rounds: str = "one"
    batches: str = "whole"
    draw: int = 0
    option: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What is not as in all stages, in a line."""
        unusual = [value for name, value in asdict(self).items() if value not in plain(name)]
        return "-".join(["_".join(each) if isinstance(each, tuple) else str(each) for each in unusual])

    def has(self, values: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether it has one of these values in each of these dimensions."""
        return all(getattr(self, name) in those for name, those in values.items())

    @functools.cached_property
    def pairs(self) -> frozenset[tuple[tuple[str, str], ...]]:
        """Values that meet in it, two by two."""
        return frozenset(combinations([(name, getattr(self, name)) for name in DIMENSIONS], 2))

    def with_option(self, option: tuple[str, str]) -> Case:
        """This case with an argument more."""
        return replace(self, option=option)

    def at(self, **changes: str) -> Case:
        """This case with other values."""
        return replace(self, **changes)


def plain(name: str) -> tuple[object, ...]:
    """Values of a field that a case's name does not say."""
    if name in ("stage", "change"):
        return ()
    return (DIMENSIONS[name][0],) if name in DIMENSIONS else (0, ())


def is_possible(values: Mapping[str, str]) -> bool:
    """Whether some run has all of these; a dimension may be missing."""
    return not any(all(values.get(name) in those for name, those in rule.items()) for rule in IMPOSSIBLE)


def cases(seed: int) -> list[Case]:
    """Cases in which all values that can meet do, other ones for each seed; the first ones bring most in least time.

    The generator draws them a stage at a time: with one that has every value of every stage most rows would be
    impossible, and it ends when it finds no next one.
    """
    left = [case for stage in DIMENSIONS["stage"] for case in all_cases(stage, seed)]
    missing = {pair for case in left for pair in case.pairs}
    chosen = []
    while missing:
        best = max(left, key=lambda case: len(case.pairs & missing) / _SECONDS.get(case.change, 1))
        chosen.append(best)
        missing -= best.pairs
    return chosen


def all_cases(stage: str, seed: int) -> Iterator[Case]:
    """Cases of one stage in which all values that can meet there do."""
    drawn = random.Random(f"{stage} {seed}")
    values = {
        name: [value for value in drawn.sample(each, len(each)) if stage in STAGES_WITH.get((name, value), (stage,))]
        for name, each in DIMENSIONS.items()
        if name != "stage"
    }
    names = list(values)

    def fits(row: Sequence[str]) -> bool:
        return is_possible({"stage": stage, **dict(zip(names, row, strict=False))})

    for row in AllPairs(OrderedDict(values), filter_func=fits):
        yield Case(stage, **row._asdict(), draw=drawn.randrange(1, 1000))
