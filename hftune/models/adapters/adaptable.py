"""Which linear modules an adapter can change: not those that do more than project, or whose weights a kernel reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hftune.models.adapters.passed_by import passed_by


def unadaptable(model: nn.Module) -> list[str]:
    """Names of linear modules that `all` leaves out, in the model's order."""
    found = {*passed_by(model), *_odd(model)}
    return [name for name, _ in model.named_modules() if name in found]


def without_effect(model: nn.Module) -> dict[str, str]:
    """Names of linear modules that no adapter can change, each with the cause, to follow the name.

    What a kernel reads on one of two ways is not among them: where there is no kernel, an adapter has its effect.
    """
    read = {
        name: f"{reader.owner} reads its weight and does not call it"
        for name, reader in passed_by(model).items()
        if reader.always
    }
    return read | {name: f"{kind} does more than project" for name, kind in _odd(model).items()}


def _odd(model: nn.Module) -> dict[str, str]:
    """Linear modules of classes that compute something else than a linear does: name to class."""
    kinds: dict[type[nn.Linear], bool] = {}
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and type(module).forward is not nn.Linear.forward:
            kind = type(module)
            if kind not in kinds:
                kinds[kind] = _only_projects(kind)
            found |= {} if kinds[kind] else {name: kind.__name__}
    return found


def _only_projects(kind: type[nn.Linear]) -> bool:
    """Whether a class of linears computes what a linear does; it is tried out (Llama 4's router gives scores, too)."""
    if not kind.__module__.startswith(("transformers.models.", "transformers_modules.")):
        return True  # quantised ones and the like, which peft knows
    probe: Any = object.__new__(kind)
    nn.Linear.__init__(probe, 4, 3)
    x = torch.linspace(-1, 1, 8).view(1, 2, 4)
    try:
        found = probe(x)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):
        return False
    return isinstance(found, torch.Tensor) and torch.equal(found, nn.functional.linear(x, probe.weight, probe.bias))
