"""The checks that every cell goes through; each yields what is wrong, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.table import expected
from tests.table.cells import MODES, STEPS, Cell, starting_point
from tests.table.drive import RESULT
from tests.table.refusals import rules_of
from tests.table.reload import RELOADED
from tests.table.witness import LOGITS, RECORD

LOSS_TOLERANCE = 1e-4
LOGIT_TOLERANCE = {"fp32": 2e-3, "nf4": 2e-3, "int8": 1e-2}
"""Of the largest logit, between ZeRO stages, by what holds the base: Adam divides by small gradients, whose last digits
depend on the order of sums. 8-bit rounds activations to 1/127 of their row's largest, and the last digit of one can tip
it into the next step: adapters 1e-6 to 7e-4 apart, after losses equal to 4e-6, were seen to give logits 3e-3 to 6e-3
apart."""
RELOAD_TOLERANCE = 1e-5
"""Of the largest logit, between a model and its own reloaded weights."""


@dataclass
class Outcome:
    """What a cell left behind."""

    cell: Cell
    folder: Path
    code: int
    said: str
    seconds: float

    @property
    def record(self) -> dict[str, Any]:
        """The witness's, of a cell that ran."""
        found: dict[str, Any] = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        return found

    @property
    def reloaded(self) -> dict[str, Any]:
        """What reloading found, of a cell that ran."""
        found: dict[str, Any] = json.loads((self.folder / RELOADED).read_text(encoding="utf-8"))
        return found

    @property
    def logits(self) -> torch.Tensor:
        """Of the trained model."""
        return load_file(self.folder / LOGITS)["logits"]


def read_outcome(cell: Cell, work: Path, code: str | None = None) -> Outcome | None:
    """The outcome of a cell, or None if it was not run by `code`; None lets any code count."""
    folder = work / "cells" / cell.name
    if not (folder / RESULT).is_file():
        return None
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if code not in (None, result["made_by"]):
        return None
    return Outcome(cell, folder, result["code"], result["said"], result["seconds"])


def problems(outcome: Outcome, others: Mapping[Cell, Outcome]) -> list[str]:
    """All that is wrong with a cell.

    Args:
        outcome: Of the cell.
        others: Outcomes that it may be compared with, at least its `references`.
    """
    if rules_of(outcome.cell):
        return list(is_refused(outcome))
    if outcome.code != 0:
        return [f"ended with code {outcome.code}: {outcome.said[-600:]}"]
    return [problem for check in CHECKS for problem in check(outcome, others)]


def is_refused(outcome: Outcome) -> Iterator[str]:
    """It ended with exit code 2 and the words of a rule, wrote no output folder and has no traceback."""
    rules = rules_of(outcome.cell)
    if outcome.code != 2:
        yield f"must be refused ({rules[0].reason}) and ended with code {outcome.code}: {outcome.said[-600:]}"
    elif not any(rule.says in outcome.said for rule in rules):
        yield f"was refused in other words than {[rule.says for rule in rules]}: {outcome.said[-600:]}"
    if "Traceback" in outcome.said:
        yield "its refusal comes with a traceback"
    if (outcome.folder / "out").exists():
        yield "was refused after something had been written"


def trains(outcome: Outcome, others: Mapping[Cell, Outcome]) -> Iterator[str]:
    """Every step has a finite loss, and they differ."""
    losses = outcome.record["losses"]
    if len(losses) != STEPS or not all(map(math.isfinite, losses)):
        yield f"losses are {losses}"
    elif len(set(losses)) == 1 and outcome.cell.script != "rl":  # that of RL is zero by construction at every step
        yield f"the loss stays at {losses[0]}"


def stage_is_at_work(outcome: Outcome, others: Mapping[Cell, Outcome]) -> Iterator[str]:
    """The ZeRO stage asked for is the engine's."""
    if outcome.record["zero_stage"] != MODES[outcome.cell.mode].stage:
        yield f"ZeRO stage {outcome.record['zero_stage']} is at work"


def starts_where_the_base_is(outcome: Outcome, others: Mapping[Cell, Outcome]) -> Iterator[str]:
    """The first loss is that of the base: no method changes the model before the first step."""
    plain = others[starting_point(outcome.cell)]
    if plain.code == 0 and outcome.cell.script != "rl":
        first, base = outcome.record["losses"][0], plain.record["losses"][0]
        if abs(first - base) > LOSS_TOLERANCE:
            yield f"the first loss is {first}, that of the base {base}"


def like_one_process(outcome: Outcome, others: Mapping[Cell, Outcome]) -> Iterator[str]:
    """Losses and final logits are those of one process without DeepSpeed. RL draws other completions on other ranks."""
    alone = others[outcome.cell.at(mode="alone")]
    if alone is outcome or outcome.cell.script == "rl":
        return
    if alone.code != 0:
        yield f"runs, and in one process it ends with code {alone.code}"
        return
    losses, reference = outcome.record["losses"], alone.record["losses"]
    if any(abs(a - b) > LOSS_TOLERANCE for a, b in zip(losses, reference, strict=True)):
        yield f"losses are {losses}, in one process {reference}"
    distance = float((outcome.logits - alone.logits).abs().max() / alone.logits.abs().max())
    if distance > LOGIT_TOLERANCE[outcome.cell.base]:
        yield f"logits are {distance:.1e} from those of one process"


def changes_what_it_should(outcome: Outcome, others: Mapping[Cell, Outcome]) -> Iterator[str]:
    """Tensor by tensor: what should be trained is, and is finite; nothing else moves by a bit."""
    parameters = outcome.record["parameters"]
    wanted = expected.trained(outcome.cell)
    trainable = {name for name, state in parameters.items() if state["requires_grad"]}
    changed = {name for name, state in parameters.items() if state["changed"]}
    yield from _difference("trainable", trainable, wanted)
    yield from _difference("changed", changed, wanted)
    broken = sorted(name for name, state in parameters.items() if not state["finite"])
    if broken:
        yield f"not finite: {broken[:3]}"


def groups_are_right(outcome: Outcome, others: Mapping[Cell, Outcome]) -> Iterator[str]:
    """Each trained parameter is in one group, whose decay and rate at every step equal the closed form."""
    seen: list[str] = []
    for group in outcome.record["groups"]:
        seen += group["members"]
        for name in group["members"]:
            shape = outcome.record["parameters"][name]["shape"]
            decay, rates = expected.decay(outcome.cell, name, shape), expected.rates(outcome.cell, name, shape)
            if not math.isclose(group["weight_decay"], decay, rel_tol=1e-9):
                yield f"{name} decays by {group['weight_decay']}, not by {decay}"
            if not all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(group["rates"], rates, strict=True)):
                yield f"{name} has the rates {group['rates']}, not {rates}"
    if len(seen) != len(set(seen)):
        yield "a parameter is in two groups"
    yield from _difference("in a group", set(seen), expected.trained(outcome.cell))


def ranks_agree(outcome: Outcome, others: Mapping[Cell, Outcome]) -> Iterator[str]:
    """All processes end with the same weights."""
    if not outcome.record["ranks_agree"]:
        yield "processes end with different weights"


def reloads(outcome: Outcome, others: Mapping[Cell, Outcome]) -> Iterator[str]:
    """Plain transformers and peft load it without a missing or unexpected key, to the logits of the live model."""
    found = outcome.reloaded
    if found["misfits"]:
        yield f"reloading: {found['misfits'][:4]}"
    if found["difference"] > RELOAD_TOLERANCE * found["size"]:
        yield f"reloaded logits are {found['difference']:.1e} off (the largest is {found['size']:.1f})"
    if found["moved"] is not None and found["moved"] < 1e-5:
        yield "reloaded logits are those of the base"


def _difference(what: str, found: set[str], wanted: set[str]) -> Iterator[str]:
    for kind, names in (("should not be", found - wanted), ("should be", wanted - found)):
        if names:
            yield f"{len(names)} {kind} {what}, such as {sorted(names)[0]}"


Check = Callable[[Outcome, Mapping[Cell, Outcome]], Iterator[str]]
CHECKS: tuple[Check, ...] = (
    trains,
    stage_is_at_work,
    starts_where_the_base_is,
    like_one_process,
    changes_what_it_should,
    groups_are_right,
    ranks_agree,
    reloads,
)
