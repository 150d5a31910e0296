"""Where the decoder layers of a model are, found by its structure."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def decoder_list(model: nn.Module) -> str | None:
    """Name of the list of decoder layers: the outermost as long as the config says there are layers; None without one.

    Where none is so long (a layer that the config counts as two, layers that are gone through again and again), it is
    the longest of layers that can be recomputed.
    """
    config: Any = getattr(model, "config", None)
    count = getattr(config.get_text_config(), "num_hidden_layers", None)
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    found = [name for name, module in lists.items() if len(module) == count]
    if found:
        return min(found, key=lambda name: name.count("."))
    longest = checkpointed_layers(model)
    layers = getattr(*longest) if longest else None
    return next((name for name, module in lists.items() if module is layers), None)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks of a decoder."""
    name = decoder_list(model)
    layers: Any = model.get_submodule(name) if name is not None else []
    return list(layers)


def checkpointed_layers(model: nn.Module) -> tuple[nn.Module, str] | None:
    """The module that holds the decoder layers, and under which name; None where the model has none of that make."""
    found: tuple[nn.Module, str] | None = None
    most = 0
    for module in model.modules():
        for name, child in module.named_children():
            # The longest, since a model may have further lists of such layers (a vision tower, a predictor's).
            if not isinstance(child, nn.ModuleList) or len(child) <= most:
                continue
            if all(isinstance(layer, GradientCheckpointingLayer) for layer in child):
                found, most = (module, name), len(child)
    return found
