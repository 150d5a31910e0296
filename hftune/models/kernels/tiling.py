"""MLPs that are computed tile by tile, a tile being some tokens of the row: wide activations exist for one tile only.

After the TiledMLP of ALST (arXiv:2506.13996, section 3.1.1).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hftune.arguments.training import StageArguments
from hftune.compat.installing import replace_method
from hftune.models.structure import decoder_layers, routers_of

_NAMES = ("mlp", "feed_forward")


def tileable(model: nn.Module) -> list[nn.Module]:
    """The MLPs of the decoder layers whose tokens do not know of each other: all but mixtures of experts."""
    found = [getattr(layer, name, None) for layer in decoder_layers(model) for name in _NAMES]
    # A router's load-balancing loss is computed over all tokens of a row, which tiles would take apart.
    routed = {id(router) for router in routers_of(model)}
    return [
        module
        for module in found
        if isinstance(module, nn.Module) and not any(id(part) in routed for part in module.modules())
    ]


def tiles_for(tokens: int, hidden_size: int) -> int:
    """Tiles in which the activations of an MLP are about as large as its weights: ALST's ceil(tokens / hidden size).

    Args:
        tokens: Of the longest batch of a process.
    """
    return max(1, math.ceil(tokens / hidden_size))


def longest_batch(training_args: StageArguments, longest: int) -> int:
    """Tokens of the longest batch of a process, in training or evaluation.

    Args:
        longest: Tokens of the longest row.
    """
    rows = max(training_args.per_device_train_batch_size, training_args.per_device_eval_batch_size)
    return -(-rows * longest // training_args.sequence_parallel_size)


def tile_mlps(model: nn.Module, tiles: int) -> int:
    """Have the MLPs of a model computed in so many tiles; returns how many MLPs there are.

    Args:
        model: The plain model, with its adapter's layers inside where it has one.
    """
    modules: list[Any] = tileable(model)
    for module in modules:
        module.tiles, module.forward_of_a_tile = tiles, module.forward
        replace_method(module, "forward", _tiled)
    return len(modules)


def _tiled(self: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    """(batch, tokens, size) to the same."""
    forward, tiles = vars(self)["forward_of_a_tile"], vars(self)["tiles"]
    flat = hidden_states.reshape(-1, hidden_states.shape[-1])
    # As many tiles for every batch and on every process, also where rows are shorter: under ZeRO-3 each tile gathers
    # weights, and all processes must take part.
    parts = flat.tensor_split(tiles)
    if self.training and torch.is_grad_enabled():
        done = [checkpoint(forward, part, use_reentrant=False) for part in parts]
    else:
        done = [forward(part) for part in parts]
    return torch.cat(done).view(hidden_states.shape)
