"""Which cells must be refused, why, and in which words. A refusal that no rule expects is a failure, and so is a cell
that runs although a rule says that it must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.architectures import WITHOUT_SCORE_HEAD
from tests.table.cells import MODES, Cell
from tests.table.plain import plain


@dataclass(frozen=True)
class Rule:
    """A refusal.

    Args:
        mark: Its number on the page.
        says: A piece of the message that the user gets.
        reason: For the page.
        when: The cells.
    """

    mark: str
    says: str
    reason: str
    when: Callable[[Cell], bool]


def _lacks_o_proj(cell: Cell) -> bool:
    model = plain(cell.architecture, scores=cell.script == "rm")
    return not any(name.endswith("o_proj") for name in model.linears)


RULES: tuple[Rule, ...] = (
    Rule(
        "A",
        "a quantised model cannot be trained in full",
        "Quantised weights are frozen: only an adapter can be trained beside them.",
        lambda cell: cell.base != "fp32" and not cell.is_adapter,
    ),
    Rule(
        "B",
        "8-bit weights under ZeRO-3",
        "ZeRO-3 would partition 8-bit weights apart from their scales, and train with a wrong loss.",
        lambda cell: cell.base == "int8" and MODES[cell.mode].stage == 3,
    ),
    Rule(
        "C",
        "the model has no module",
        "The architecture has no module of that name.",
        lambda cell: cell.method == "lora_names" and _lacks_o_proj(cell),
    ),
    Rule(
        "E",
        "DoRA loses the scales of 8-bit weights",
        "peft 0.21 makes DoRA's norms from a copy of the 8-bit weights that has lost their scales, on a CPU.",
        lambda cell: cell.base == "int8" and cell.method == "dora",
    ),
    Rule(
        "F",
        "so there is no reference",
        "DPO's reference is the model with its adapter switched off, which does not undo trained biases.",
        lambda cell: cell.script == "dpo" and cell.method in ("lora_bias_all", "lora_bias_only"),
    ),
    Rule(
        "D",
        "no sequence classification",
        "transformers has no model with a score head for this architecture.",
        lambda cell: cell.script == "rm" and cell.architecture in WITHOUT_SCORE_HEAD,
    ),
)


def rules_of(cell: Cell) -> list[Rule]:
    """All rules that a cell breaks; none if it must run."""
    return [rule for rule in RULES if rule.when(cell)]
