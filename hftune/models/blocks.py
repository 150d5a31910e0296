"""Where the decoder layers of a model are, found by its structure."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import GradientCheckpointingLayer


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks of a decoder."""
    found = _layers(model)
    return [] if found is None else list(found)


def decoder_list(model: nn.Module) -> str | None:
    """Name of the list of decoder layers; None without one."""
    layers = _layers(model)
    return next((name for name, module in model.named_modules() if module is layers), None)


def _layers(model: nn.Module) -> nn.ModuleList | None:
    """The outermost list of modules that is as long as the config says there are layers."""
    config: Any = getattr(model, "config", None)
    count = getattr(config.get_text_config(), "num_hidden_layers", None)
    for part in _decoder_first(model):
        for module in part.modules():
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return module
    # Of a model that was cut down, whose config still says how many there were; or whose config counts otherwise: a
    # layer as two, or each as often as it is gone through.
    found = checkpointed_layers(model)
    layers: nn.ModuleList | None = getattr(*found) if found else None
    return layers


def checkpointed_layers(model: nn.Module) -> tuple[nn.Module, str] | None:
    """The module that holds the decoder layers, and under which name; None where the model has none of that make."""
    found: tuple[nn.Module, str] | None = None
    most = 0
    for part in _decoder_first(model):
        for module in part.modules():
            for name, child in module.named_children():
                # The longest, since a decoder may have further lists of such layers (a predictor's).
                if not isinstance(child, nn.ModuleList) or len(child) <= most:
                    continue
                if all(isinstance(layer, GradientCheckpointingLayer) for layer in child):
                    found, most = (module, name), len(child)
        if found is not None:
            return found
    return None


def _decoder_first(model: nn.Module) -> list[nn.Module]:
    """Where to look for decoder layers: in the decoder of text, and only without any there in the whole model.

    A vision tower comes first in many models, and may have as many layers as the decoder, or more.
    """
    ask = getattr(model, "get_decoder", None)
    decoder = ask() if callable(ask) else None
    return [decoder, model] if isinstance(decoder, nn.Module) and decoder is not model else [model]
