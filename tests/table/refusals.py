"""Which cells must be refused, why, and in which words. A refusal that no rule expects is a failure, and so is a cell
that runs although a rule says that it must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.architectures import MIXTURES_OF_EXPERTS
from tests.table.cells import MODES, Cell
from tests.table.plain import Plain, plain


@dataclass(frozen=True)
class Rule:
    """A refusal.

    Args:
        says: A piece of the message that the user gets.
        reason: For the page.
        when: The cells.
    """

    says: str
    reason: str
    when: Callable[[Cell], bool]


def _model(cell: Cell) -> Plain:
    return plain(cell.architecture, scores=cell.script == "rm")


def _lacks(*endings: str) -> Callable[[Cell], bool]:
    """Whether a model lacks one of the linear modules."""
    return lambda cell: not all(any(name.endswith(end) for name in _model(cell).linears) for end in endings)


def _is_mixture(cell: Cell) -> bool:
    return cell.architecture in MIXTURES_OF_EXPERTS


def _adapts_experts(cell: Cell) -> bool:
    """`all` takes the stacked experts of a mixture in, and names or a regex do not."""
    named = ("lora_names", "lora_regex")
    return _is_mixture(cell) and cell.is_adapter and cell.method not in named


def _has_biases(cell: Cell) -> bool:
    return any(name.endswith(".bias") for name in _model(cell).parameters)


def _stage(cell: Cell) -> int:
    return MODES[cell.mode].stage or 0


RULES: tuple[Rule, ...] = (
    Rule(
        "a quantised model cannot be trained in full",
        "Quantised weights are frozen: only an adapter can be trained on top of them.",
        lambda cell: cell.base != "fp32" and not cell.is_adapter,
    ),
    Rule(
        "8-bit weights under ZeRO-3",
        "ZeRO-3 would partition 8-bit weights apart from their scales, and train with a wrong loss.",
        lambda cell: cell.base == "int8" and _stage(cell) == 3,
    ),
    Rule(
        "the model has no module",
        "The architecture has no module of that name.",
        lambda cell: cell.method == "lora_names" and _lacks("o_proj")(cell),
    ),
    Rule(
        "the model has no biases to train",
        "The architecture has no biases.",
        lambda cell: cell.method in ("lora_bias_all", "lora_bias_only") and not _has_biases(cell),
    ),
    Rule(
        "no parameter's name begins with it",
        "The architecture's final norm has another name.",
        lambda cell: cell.method == "lora_norms" and "model.norm.weight" not in _model(cell).parameters,
    ),
    Rule(
        "of 2 or 3 dimensions",
        "Only a mixture of experts has stacked experts to adapt.",
        lambda cell: cell.method == "lora_experts" and not _is_mixture(cell),
    ),
    Rule(
        "loses the scales of 8-bit ones",
        "peft 0.21 makes DoRA's norms from a copy of the 8-bit weights that has lost their scales, on a CPU.",
        lambda cell: cell.base == "int8" and cell.method == "dora",
    ),
    Rule(
        "ZeRO-3 loses track of them",
        "peft 0.21 makes 4-bit parameters anew in each pass of DoRA, on a CPU; ZeRO-3 knows the old ones.",
        lambda cell: cell.base == "nf4" and cell.method == "dora" and _stage(cell) == 3,
    ),
    Rule(
        "cannot be evaluated with 8-bit weights on a CPU",
        "bitsandbytes' 8-bit kernel for CPUs fails in latent attention.",
        lambda cell: cell.base == "int8" and cell.architecture in ("deepseek_v2", "deepseek_v3"),
    ),
    Rule(
        "the reference would be trained as well",
        "DPO's reference is the model with its adapter switched off, which does not undo trained biases.",
        lambda cell: cell.script == "dpo" and cell.method in ("lora_bias_all", "lora_bias_only"),
    ),
    Rule(
        "neither DoRA nor dropout",
        "In a mixture `all` adapts the stacked experts, for which peft has no DoRA.",
        lambda cell: cell.method == "dora" and _adapts_experts(cell),
    ),
    Rule(
        "factored by the rows and columns",
        "ZeRO-1, 2 and 3 update flat pieces of weights, and Adafactor's moments are factored by rows and columns.",
        lambda cell: cell.optimizer == "adafactor" and _stage(cell) > 0,
    ),
    Rule(
        "muon",
        "Muon has no kernel for offloaded states.",
        lambda cell: cell.optimizer == "muon" and cell.mode.endswith("offload"),
    ),
)


def rules_of(cell: Cell) -> list[Rule]:
    """All rules that a cell breaks; none if it must run."""
    return [rule for rule in RULES if rule.when(cell)]
