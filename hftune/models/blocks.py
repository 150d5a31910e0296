"""Where the decoder layers of a model are, found by its structure."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks of a decoder: the outermost list of modules that is as long as the config says there are layers."""
    config: Any = getattr(model, "config", None)
    count = config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []


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
