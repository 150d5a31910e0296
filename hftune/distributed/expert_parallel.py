"""Expert parallelism through DeepSpeed's AutoEP: each process keeps some experts of every layer.

Experts are sharded here, before the optimizer is made, and not by the engine after it: so parameter groups, decay and
rates are made of the weights that are trained, and ZeRO finds the marked groups that it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hftune.compat.installing import replace_method
from hftune.distributed import zero

FLAG = "--expert_parallel_size"

PRESETS = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")
"""Architectures (`model_type`) whose layers AutoEP (0.19.8) was found to train as transformers does."""

ACTIVATION = "silu"
"""Of the experts of all of them; AutoEP computes no other there."""


def group_name(size: int) -> str:
    """DeepSpeed's name for the groups of `size` processes that hold all experts together."""
    return f"ep_size_{size}"


def shard_experts(model: nn.Module, size: int, *, grouped: bool) -> None:
    """Have each process keep 1 / size of the experts of every layer, in place. All processes must call it.

    Args:
        model: A mixture of experts, whole or partitioned by ZeRO-3, the same on every process.
        size: Processes that hold all experts together; neighbours by rank.
        grouped: Multiply all experts of a process at once, on a GPU in 16 bit.

    Raises:
        ValueError: AutoEP does not know the layers; preflight has looked.
    """
    from deepspeed.module_inject.auto_ep import AutoEP
    from deepspeed.module_inject.auto_ep_config import parse_autoep_config, validate_autoep_post_detection
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.utils import groups

    # Made here already, and not by the engine: layers are built for this process's rank within its group.
    groups._create_expert_and_data_parallel(size, mp_size=1, pp_size=1, mp_mode="sp")
    rank = torch.distributed.get_rank(groups._get_expert_parallel_group(group_name(size)))
    config = parse_autoep_config({"enabled": True, "autoep_size": size, "use_grouped_mm": grouped})
    auto_ep = AutoEP(model, config)
    # It would point transformers' recorders of router logits at its own layers, and cannot with transformers 5.23
    # (`_CanRecordRegistry.get()` takes no default). hftune hears routers by hooks and never asks a model for logits.
    replace_method(auto_ep, "_retarget_transformers_output_recorders", lambda *_: None)
    # What it finds is checked before the first layer is replaced: half a model would be of no use.
    specs = auto_ep.ep_parser()
    validate_autoep_post_detection(config, specs)
    # Under ZeRO-3 a process's experts are cut again, over the processes that have the same ones.
    partitioned: list[Any] = [one for one in model.parameters() if zero.is_partitioned(one)]
    convert = partitioned[0].convert_to_zero_parameters if partitioned else None

    def cut(layer: nn.Module) -> None:
        DeepSpeedEngine._partition_autoep_zero3_experts(layer, convert)

    auto_ep.replace_moe_layers(specs, size, rank, on_moe_layer_replaced=None if convert is None else cut)


def expert_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers whose experts are sharded, with their names, in the model's order; none before `shard_experts`."""
    for name, module in model.named_modules():
        # By name: importing the class would import DeepSpeed, also where no experts are sharded.
        if type(module).__name__ == "AutoEPMoELayer":
            yield name, module


def expert_options(model: nn.Module) -> dict[int, dict[str, Any]]:
    """What DeepSpeed reads of an optimizer's group of sharded experts, by the id of each such parameter."""
    return {
        id(parameter): {"moe": True, "name": layer.ep_group_name}
        for _, layer in expert_layers(model)
        for parameter in layer.experts.parameters()
    }
