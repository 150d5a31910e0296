"""Which parts of a decoder layer can be recomputed, by the architecture alone; needs no weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import GradientCheckpointingLayer, PreTrainedModel

from hftune.arguments.recomputation import ATTENTION, CORE_ATTENTION, FULL, MLP, Recomputation
from hftune.errors import ArgumentError
from hftune.models.blocks import decoder_layers

# What architectures call the attention and the MLP of a layer.
_CHILDREN = {
    ATTENTION: ("self_attn", "attention", "attn", "self_attention", "linear_attn"),
    MLP: ("mlp", "feed_forward", "block_sparse_moe", "moe"),
}


def not_recomputable(model: PreTrainedModel, plan: Recomputation) -> ArgumentError | None:
    """Why this architecture cannot recompute what the plan says; None where it can."""
    name, place = type(model).__name__, "--activation_checkpointing"
    off = "use --activation_checkpointing full or none"
    if not model.supports_gradient_checkpointing:
        return ArgumentError(f"{name} cannot recompute activations", place=place, fix=f"add {place} none")
    layers = decoder_layers(model)
    try:
        chosen = plan.layers(len(layers))
    except ArgumentError as problem:
        return problem
    if plan.parts == (FULL,) and len(chosen) == len(layers):
        return None
    if not layers or not all(isinstance(layer, GradientCheckpointingLayer) for layer in layers):
        return ArgumentError(f"{name} recomputes all of its layers as a whole, or none", place=place, fix=off)
    for part in plan.parts:
        if not all(list(members(layers[number], part)) for number in chosen):
            return ArgumentError(f"hftune finds no {part} in the layers of {name}", place=place, fix=off)
    return None


def members(layer: nn.Module, part: str) -> Iterator[nn.Module]:
    """The modules of a layer that make a part: the layer itself, or its attention, or its MLP."""
    if part == FULL:
        yield layer
        return
    for name in _CHILDREN[MLP if part == MLP else ATTENTION]:
        child = getattr(layer, name, None)
        if isinstance(child, nn.Module) and (part != CORE_ATTENTION or _asks_for_function(child)):
            yield child


def _asks_for_function(attention: nn.Module) -> bool:
    """Whether a module takes its attention function from transformers' table, where it can be found."""
    forward: Any = inspect.unwrap(type(attention).forward)
    return "ALL_ATTENTION_FUNCTIONS" in forward.__code__.co_names
