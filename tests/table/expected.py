"""What each method should train, and with which rate and decay: worked out from names, not from hftune."""

from __future__ import annotations

from collections.abc import Callable

from tests.table.cells import STEPS, WEIGHT_DECAY, Cell
from tests.table.plain import Plain, plain

_PEFT = "base_model.model."


def trained(cell: Cell) -> set[str]:
    """Names of all parameters that training should change; no other may."""
    model = plain(cell.architecture, scores=cell.script == "rm")
    names = _TRAINED[cell.method](model)
    if cell.is_adapter and cell.script == "rm":
        names |= _saved(model.head)  # a fresh head is always trained
    return names


def decayed(cell: Cell, name: str) -> float:
    """Weight decay of a trained parameter: none for biases and norms."""
    model = plain(cell.architecture, scores=cell.script == "rm")
    own = name.removeprefix(_PEFT).replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")
    return 0.0 if own in model.undecayed else WEIGHT_DECAY


def rates(cell: Cell, name: str) -> list[float]:
    """Learning rate of a trained parameter at every step: linear to zero, without warm-up."""
    return [cell.learning_rate * (1 - step / STEPS) for step in range(STEPS)]


def _lora(modules: set[str] | frozenset[str], *parts: str) -> set[str]:
    return {
        f"{_PEFT}{module}.lora_{part}"
        for module in modules
        for part in ("A.default.weight", "B.default.weight", *parts)
    }


def _saved(module: str) -> set[str]:
    return {f"{_PEFT}{module}.modules_to_save.default.weight"}


def _biases(model: Plain, *, everywhere: bool) -> set[str]:
    """Biases as they are called once peft has put its layers around the linears."""
    found = set()
    for name in model.parameters:
        module, _, last = name.rpartition(".")
        if last == "bias" and (everywhere or module in model.linears):
            found.add(f"{_PEFT}{module}.base_layer.bias" if module in model.linears else f"{_PEFT}{name}")
    return found


_TRAINED: dict[str, Callable[[Plain], set[str]]] = {
    "full": lambda model: set(model.parameters),
    "lora": lambda model: _lora(model.linears),
    "lora_names": lambda model: _lora({name for name in model.linears if name.endswith("o_proj")}),
    "rslora": lambda model: _lora(model.linears),
    "dora": lambda model: _lora(model.linears, "magnitude_vector.default.weight"),
    "lora_bias_all": lambda model: _lora(model.linears) | _biases(model, everywhere=True),
    "lora_bias_only": lambda model: _lora(model.linears) | _biases(model, everywhere=False),
    "lora_embeddings": lambda model: _lora(model.linears) | _saved("model.embed_tokens") | _saved("lm_head"),
}
