"""Which linear modules an adapter can change: not those that do more than project, or whose weights a kernel reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_ALWAYS_READ = {
    **dict.fromkeys(("MambaMixer", "FalconMambaMixer", "JambaMambaMixer"), ("dt_proj",)),
    "LongcatFlashTopkRouter": ("classifier",),
}
"""Class -> linear modules of it whose weight it multiplies with itself (transformers 5.23): an adapter lies around the
module, which is not called."""
_READ_BY_KERNELS = {
    **dict.fromkeys(("MambaMixer", "FalconMambaMixer"), ("out_proj", "x_proj")),
    **dict.fromkeys(("BambaMixer", "FalconH1Mixer", "GraniteMoeHybridMambaLayer", "Mamba2Mixer"), ("out_proj",)),
    **dict.fromkeys(("NemotronHMamba2Mixer", "Zamba2MambaMixer"), ("out_proj",)),
}
"""The same, where a fused kernel is installed that is given the weight; the plain way calls the module."""


def unadaptable(model: nn.Module) -> list[str]:
    """Names of linear modules that `all` leaves out, in the model's order."""
    found = {*_read(model, _ALWAYS_READ), *_read(model, _READ_BY_KERNELS), *_odd(model)}
    return [name for name, _ in model.named_modules() if name in found]


def without_effect(model: nn.Module) -> dict[str, str]:
    """Names of linear modules that no adapter can change, each with the cause, to follow the name.

    What a kernel reads on one of two ways is not among them: where there is no kernel, an adapter has its effect.
    """
    read = {
        name: f"{owner} reads its weight and does not call it" for name, owner in _read(model, _ALWAYS_READ).items()
    }
    return read | {name: f"{kind} does more than project" for name, kind in _odd(model).items()}


def _read(model: nn.Module, table: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Linear modules that a table names: name to the class of the module that reads their weight."""
    found = {}
    for name, module in model.named_modules():
        children = {child for kind in type(module).__mro__ for child in table.get(kind.__name__, ())}
        for child in children:
            if isinstance(getattr(module, child, None), nn.Linear):
                found[f"{name}.{child}" if name else child] = type(module).__name__
    return found


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
