"""Which linear modules an adapter can change: not those that do more than project, or whose weights a kernel reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_READ_BY_KERNELS = ("out_proj", "x_proj", "dt_proj")
"""Projections of a Mamba mixer of which its kernels take the weight, past the module and its adapter."""


def unadaptable(model: nn.Module) -> list[str]:
    """Names of linear modules that `all` leaves out, in the model's order."""
    kinds: dict[type[nn.Linear], bool] = {}
    found = set(_of_mixers(model))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and type(module).forward is not nn.Linear.forward:
            kind = type(module)
            if kind not in kinds:
                kinds[kind] = _only_projects(kind)
            found |= set() if kinds[kind] else {name}
    return [name for name, _ in model.named_modules() if name in found]


def _of_mixers(model: nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        # What every Mamba has: a decay by state, and a convolution before the scan.
        if isinstance(getattr(module, "A_log", None), nn.Parameter) and hasattr(module, "conv1d"):
            yield from (
                f"{name}.{each}" for each in _READ_BY_KERNELS if isinstance(getattr(module, each, None), nn.Linear)
            )


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
