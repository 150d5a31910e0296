"""The slice of the table that `make test` runs: few cells, in which every pair of values still meets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tests.table.cells import MAIN_MODES, Cell, all_cells, references
from tests.table.refusals import RULES, rules_of

PAIRS = (
    ("method", "mode"),
    ("method", "base"),
    ("mode", "base"),
    ("script", "mode"),
    ("script", "base"),
)
"""Dimensions whose values all meet, wherever a cell that runs has both. Architectures, optimizers and the other modes
each come at least once; their pairs, and methods with stages, are in the full table."""

SINGLES = ("architecture", "optimizer", "mode")

BROKEN_ONCE = (
    Cell("dpo", "qwen2", "lora_tokens", "zero3", "nf4", "adamw"),
    Cell("sft", "mixtral", "lora_experts", "zero3", "fp32", "adamw"),
)
"""Cells whose pairs meet elsewhere, and which alone have shown a fault."""

Goal = tuple[Any, ...]


def covering(cells: Iterable[Cell] | None = None) -> list[Cell]:
    """Cells that reach every goal, chosen greedily, always the first of those that reach most; refusals one a rule."""
    every = list(all_cells() if cells is None else cells)
    running = [cell for cell in every if not rules_of(cell)]
    # What a cell is compared with runs in any case, so it comes first and counts.
    chosen: dict[Cell, None] = {
        cell: None for broken in BROKEN_ONCE if broken in running for cell in (broken, *references(broken))
    }
    missing = {goal for cell in running for goal in goals(cell)} - {goal for cell in chosen for goal in goals(cell)}
    while missing:
        best = max(running, key=lambda cell: len(missing.intersection(goals(cell))))
        for cell in (best, *references(best)):
            chosen[cell] = None
            missing.difference_update(goals(cell))
    refused = [next(cell for cell in every if rules_of(cell) == [rule]) for rule in RULES]
    return [*chosen, *refused]


def goals(cell: Cell) -> Iterator[Goal]:
    """What a running cell covers: its values by themselves, and the pairs of them that must meet."""
    for name in SINGLES:
        yield (name, getattr(cell, name))
    for first, second in PAIRS:
        values = {name: getattr(cell, name) for name in (first, second)}
        if values.get("mode", MAIN_MODES[0]) in MAIN_MODES:
            yield (first, values[first], second, values[second])
