"""Trained parameters in float32 alongside a frozen base of 16 bits."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from hftune.distributed import zero


def train_in_float32(adapted: PreTrainedModel | PeftModel) -> None:
    """Keep trained parameters in float32; next to frozen ones of 16 bits each module computes in float32 by itself."""
    # All modules before any is changed: embeddings and head may be one matrix.
    found = [(name, module, _low(module)) for name, module in adapted.named_modules()]
    for name, module, low in [entry for entry in found if entry[2]]:
        before = low[0].dtype
        module.register_forward_pre_hook(lambda _, inputs: tuple(_in_dtype(value, torch.float32) for value in inputs))
        # What follows in the base wants its own dtype back. Nothing follows a score head, whose scores stay exact.
        if "score" not in name.split("."):
            module.register_forward_hook(lambda _, inputs, found, dtype=before: _in_dtype(found, dtype))
    for parameter in [parameter for *_, low in found for parameter in low]:
        parameter.data = parameter.data.float()


def _low(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The module's own parameters that are trained, in less than 32 bits, and whole on this process."""
    own = [p for p in module.parameters(recurse=False) if p.requires_grad and p.is_floating_point()]
    # Under ZeRO-3 the optimizer has float32 copies of what is partitioned.
    return [p for p in own if p.element_size() < 4 and not zero.is_partitioned(p)]


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value
