"""The only place that looks into ZeRO's optimizers: which parameters of the model are behind each group."""

from __future__ import annotations

from typing import Any

import torch


def optimizer_members(optimizer: Any) -> list[list[torch.Tensor]]:
    """The model's parameters behind each group of an optimizer, which under ZeRO holds flat pieces of them instead.

    Args:
        optimizer: A torch optimizer or ZeRO's around one, with accelerate's wrapper or without.
    """
    layers: list[Any] = [optimizer, getattr(optimizer, "optimizer", None)]
    for layer in layers:
        if hasattr(layer, "sub_group_to_group_id"):  # ZeRO-3 cuts groups into sub-groups
            members: list[list[torch.Tensor]] = [[] for _ in layer.param_groups]
            for number, group in layer.sub_group_to_group_id.items():
                members[group] += layer.fp16_groups[number]
            return members
        for name in ("bit16_groups", "bf16_groups", "fp16_groups"):
            if hasattr(layer, name):
                return [list(group) for group in getattr(layer, name)]
    return [list(group["params"]) for group in optimizer.param_groups]
