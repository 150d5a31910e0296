"""What each method should train, and with which rate and decay: worked out from names, not from hftune."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from tests.table.cells import LAYERWISE_BOUND, LORA_REGEX, LORAPLUS_RATIO, STEPS, WEIGHT_DECAY, Cell
from tests.table.plain import Plain, plain

_PEFT = "base_model.model."


def of(cell: Cell) -> Plain:
    """The model of a cell before any adapter."""
    return plain(cell.architecture, scores=cell.script == "rm")


def trained(cell: Cell) -> set[str]:
    """Names of all parameters that training should change; no other may."""
    model = of(cell)
    names = _TRAINED[cell.method](model)
    if cell.is_adapter and cell.script == "rm":
        names |= _saved(model.head)  # a fresh head is always trained
    return names


def decay(cell: Cell, name: str, shape: list[int]) -> float:
    """Weight decay of a trained parameter: none for biases and norms."""
    return 0.0 if own_name(name) in of(cell).undecayed else WEIGHT_DECAY / muon_scale(cell, name, shape)


def rates(cell: Cell, name: str, shape: list[int]) -> list[float]:
    """Learning rate of a trained parameter at every step: linear to zero, without warm-up, times its own factor."""
    peak = cell.learning_rate * muon_scale(cell, name, shape)
    if cell.method == "loraplus" and (".lora_B." in name or len(shape) == 1):
        peak *= LORAPLUS_RATIO
    if cell.method == "layerwise":
        layers = of(cell).layers
        share = LAYERWISE_BOUND + depth(name, layers) / (layers + 2) * (1 - LAYERWISE_BOUND)
        peak *= share
    return [peak * (1 - step / STEPS) for step in range(STEPS)]


def muon_scale(cell: Cell, name: str, shape: list[int]) -> float:
    """Muon: the updates of the layers' matrices are 0.2 sqrt(max(out, in)) as large (arXiv:2502.16982).

    It is a factor on the rate, which must not reach the decay; DeepSpeed's own update has sqrt(max(1, out / in)) in it.
    """
    if cell.optimizer != "muon" or len(shape) < 2 or ".layers." not in name:
        return 1.0
    out, into = shape
    return 0.2 * math.sqrt(max(out, into)) / math.sqrt(max(1.0, out / into))


def depth(name: str, layers: int) -> int:
    """0 for embeddings, i for layer i, layers + 2 above them."""
    if "embed_tokens" in name:
        return 0
    found = re.search(r"\.layers\.(\d+)\.", name)
    return int(found.group(1)) if found else layers + 2


def own_name(name: str) -> str:
    """The name that a parameter had before peft."""
    return name.removeprefix(_PEFT).replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")


def _lora(modules: set[str] | frozenset[str], *more: str) -> set[str]:
    parts = ("A.default.weight", "B.default.weight", *more)
    return {f"{_PEFT}{module}.lora_{part}" for module in modules for part in parts}


def _saved(module: str) -> set[str]:
    return {f"{_PEFT}{module}.modules_to_save.default.weight"}


def _all(model: Plain, *more: str) -> set[str]:
    """`all`: every linear module but the head, and the stacked experts of a mixture, not its routers.

    In a mixture peft takes the names of what were linear modules in transformers 4 for the stacked experts that they
    have become, so that no other module of these names is adapted. The two stacks of a layer are wrapped one around
    the other.
    """
    if not model.experts:
        return _lora(model.linears, *more)
    taken = ("gate_proj", "up_proj", "down_proj", "gate")
    names = _lora({name for name in model.linears if not name.endswith(taken)}, *more)
    stacks = {f"{name}{inner}" for name in model.experts for inner in ("", ".base_layer")}
    return names | _lora(stacks, *more)


def _ending(model: Plain, *ends: str) -> set[str]:
    return {name for name in model.linears if name.rpartition(".")[2] in ends}


def _biases(model: Plain, *, everywhere: bool) -> set[str]:
    """Biases as they are called once peft has put its layers around the linears."""
    found = set()
    for name in model.parameters:
        module, _, last = name.rpartition(".")
        if last == "bias" and (everywhere or module in model.linears):
            found.add(f"{_PEFT}{module}.base_layer.bias" if module in model.linears else f"{_PEFT}{name}")
    return found


def _embeddings(model: Plain) -> set[str]:
    """A tied head stays one matrix with the embeddings."""
    return _all(model) | _saved("model.embed_tokens")


_TRAINED: dict[str, Callable[[Plain], set[str]]] = {
    "full": lambda model: set(model.parameters),
    "layerwise": lambda model: set(model.parameters),
    "freeze_prefix": lambda model: {name for name in model.parameters if not name.startswith("model.embed_tokens.")},
    "lora": _all,
    "rslora": _all,
    "loraplus": _all,
    "dora": lambda model: _all(model, "magnitude_vector.default.weight"),
    "lora_names": lambda model: _lora(_ending(model, "o_proj")),
    "lora_regex": lambda model: _lora({name for name in model.linears if re.fullmatch(LORA_REGEX, name)}),
    "lora_experts": lambda model: _lora(model.experts),
    "lora_bias_all": lambda model: _all(model) | _biases(model, everywhere=True),
    "lora_bias_only": lambda model: _all(model) | _biases(model, everywhere=False),
    "lora_embeddings": _embeddings,
    "lora_norms": lambda model: _all(model) | _saved("model.norm"),
    "lora_tokens": lambda model: (
        _all(model) | {f"{_PEFT}model.embed_tokens.token_adapter.trainable_tokens_delta.default"}
    ),
}
