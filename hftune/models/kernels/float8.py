"""Linear layers whose three products run in FP8 (arXiv:2209.05433), through torchao; weights stay what they are."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hftune.arguments.training import StageArguments
from hftune.compat.installing import method_replaced
from hftune.logging import notice

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


MULTIPLE = 16
"""Of both sizes of a weight, wanted by the kernels; numbers of tokens are padded."""

ROUTERS = ("gate", "router", "shared_expert_gate")
"""They choose by small differences between logits, and are small themselves."""


def to_float8(model: PreTrainedModel, recipe: str) -> int:
    """Replace the linear layers of a model's blocks in place; their number. Names and weights remain.

    The head, routers, and layers of sizes that the kernels do not take are left in the dtype of the run. Without a GPU
    that can, products are emulated: rounded to FP8 and multiplied in float32. Preflight refuses such a run.

    Args:
        recipe: A key of `CAPABILITY`.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    kept = {id(model.get_output_embeddings()), id(getattr(model, "score", None))}
    chosen = [name for name, module in model.named_modules() if id(module) not in kept and _takes(name, module)]
    own = Float8LinearConfig.from_recipe_name(recipe)
    # Padding: the number of tokens of a batch, an inner dimension of two of the three products, may be anything.
    config: Any = dataclasses.replace(own, pad_inner_dim=True, emulate=not has_float8(recipe))
    wanted = {*chosen}
    convert_to_float8_training(model, module_filter_fn=lambda _, name: name in wanted, config=config)
    return len(chosen)


def train_in_float8(model: PreTrainedModel, training_args: StageArguments) -> None:
    """`to_float8` with the recipe of `--fp8`, and a word about it and what it lacks to pay."""
    recipe = training_args.fp8
    assert recipe is not None, "called for runs with --fp8"
    layers = to_float8(model, recipe)
    notice(f"FP8 ({recipe}): {layers} linear layers; head, embeddings, norms and attention stay in bf16")
    if not training_args.torch_compile:
        notice("--fp8 without --torch_compile True: casts are kernels of their own, which costs what 8 bits save")


def _takes(name: str, module: nn.Module) -> bool:
    return (
        type(module) is nn.Linear
        and not any(size % MULTIPLE for size in module.weight.shape)
        and name.rsplit(".", 1)[-1] not in ROUTERS
    )
