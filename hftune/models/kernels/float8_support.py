"""Whether FP8 can be had here, and how a model that has it computes without it for a moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

import torch
from torch import nn

from hftune.compat.installing import method_replaced

CAPABILITY = {"tensorwise": (8, 9), "rowwise": (9, 0), "rowwise_with_gw_hp": (9, 0)}
"""The least GPU whose tensor cores take a recipe's scales: Ada, Hopper."""


def has_torchao() -> bool:
    """Whether torchao is installed."""
    return find_spec("torchao") is not None


def has_float8(recipe: str) -> bool:
    """Whether this machine's GPU multiplies in FP8 with the recipe's scales."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= CAPABILITY[recipe]


@contextmanager
def without_float8(model: nn.Module) -> Iterator[None]:
    """In the block, layers that `to_float8` made multiply as plain ones: in the dtype of the run, or of autocast.

    For proofs that documents do not see each other: a tensorwise scale is that of the largest number among all tokens,
    so that one document changes how another is rounded.
    """
    # Not imported here: torchao is an extra, and a model without its layers has never imported it.
    library = sys.modules.get("torchao.float8.float8_linear")
    layers = [module for module in model.modules() if library is not None and isinstance(module, library.Float8Linear)]
    with ExitStack() as replaced:
        for layer in layers:
            replaced.enter_context(method_replaced(layer, "forward", nn.Linear.forward))
        yield
