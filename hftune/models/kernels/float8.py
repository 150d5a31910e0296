"""Linear layers whose three products run in FP8 (arXiv:2209.05433), through torchao; weights stay what they are."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hftune.arguments.training import StageArguments
from hftune.logging import notice
from hftune.models.kernels.float8_support import has_float8

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
    """`to_float8` with the recipe of `--fp8`, and a word about it."""
    recipe = training_args.fp8
    assert recipe is not None, "called for runs with --fp8"
    report_float8(to_float8(model, recipe), recipe, compiled=training_args.torch_compile)


def report_float8(layers: int, recipe: str, *, compiled: bool) -> None:
    """Say what runs in FP8, and what it lacks to pay."""
    notice(f"FP8 ({recipe}): {layers} linear layers; head, embeddings, norms and attention stay in bf16")
    if not compiled:
        notice("--fp8 without --torch_compile True: casts are kernels of their own, which costs what 8 bits save")


def _takes(name: str, module: nn.Module) -> bool:
    return (
        type(module) is nn.Linear
        and not any(size % MULTIPLE for size in module.weight.shape)
        and name.rsplit(".", 1)[-1] not in ROUTERS
    )
