"""bitsandbytes' optimizers with moments in 8 bit, in parameter groups that say which keep 32 bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hftune.trainers.optimizers.parameter_groups import full_shape

SMALLEST_8BIT = 4096
"""bitsandbytes keeps the moments of smaller tensors in 32 bit, as `min_8bit_size` says."""


def by_group(
    optimizer: type[torch.optim.Optimizer], model: nn.Module
) -> tuple[type[torch.optim.Optimizer], dict[int, dict[str, Any]]]:
    """The class that reads bits from groups, and options of single parameters by their id."""
    return bits_by_group(optimizer), kept_in_32bit(model)


def kept_in_32bit(model: nn.Module) -> dict[int, dict[str, Any]]:
    """Embeddings, as the Trainer does it, and what bitsandbytes finds too small: groups of their own.

    ZeRO makes one flat tensor of a group, in which they would be quantised with the rest.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {
        id(parameter): {"optim_bits": 32}
        for parameter in model.parameters()
        # The whole tensor decides: under ZeRO-3 what a rank holds may be tiny.
        if id(parameter) in embeddings or full_shape(parameter).numel() < SMALLEST_8BIT
    }


def bits_by_group(optimizer: Any) -> type[torch.optim.Optimizer]:
    """One of bitsandbytes' classes that reads `optim_bits` from a group.

    Its own way, by a parameter's id or its place, is lost under ZeRO: the parameters are others, and stage 1 and 2 hand
    over one group at a time.
    """

    def get_config(self: torch.optim.Optimizer, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = optimizer.get_config(self, gindex, pindex, group)
        return config | {name: group[name] for name in ("optim_bits",) if name in group}

    # Of the same name: logs, checkpoints and ZeRO's list of known optimizers go by it.
    return type(optimizer.__name__, (optimizer,), {"get_config": get_config})
