"""Expert parallelism through DeepSpeed's AutoEP: each process keeps some experts of every layer.

Experts are sharded here, before the optimizer is made, and not by the engine after it: so parameter groups, decay and
rates are made of the weights that are trained, and ZeRO finds the marked groups that it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hftune.compat.installing import replace_method
from hftune.distributed import ranks, zero

FLAG = "--expert_parallel_size"

PRESETS = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")
"""Architectures (`model_type`) whose layers AutoEP (0.19.8) was found to train as transformers does."""


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


def gathered_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights and persistent buffers as transformers names them in memory, on the CPU; every rank must call it.

    Experts come to rank 0 one index at a time, so that in addition to the result a process holds its own experts of one
    matrix only. Tied weights are one tensor under several names.

    Returns:
        On rank 0 the weights, elsewhere nothing.
    """
    layers = dict(expert_layers(model))
    found: dict[str, Tensor] = {}
    taken: dict[int, Tensor] = {}
    for name, tensor in _plain_tensors(model, layers):
        with zero.gathered([tensor]):
            if ranks.is_main():
                # By identity: a tied tensor is copied once, and stays one tensor under its names.
                if id(tensor) not in taken:
                    taken[id(tensor)] = tensor.detach().to("cpu", copy=True)
                found[name] = taken[id(tensor)]
    for prefix, layer in layers.items():
        gate, down, up = (_whole(getattr(layer.experts, name), layer) for name in ("w1", "w2", "w3"))
        # transformers keeps gate and up of all experts in one tensor.
        if gate is not None and up is not None and down is not None:
            found[f"{prefix}.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
            found[f"{prefix}.experts.down_proj"] = down
    return found


def _plain_tensors(model: nn.Module, layers: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """All tensors but those of experts, with transformers' names."""
    for module_name, module in model.named_modules(remove_duplicate=False):
        prefix = next((one for one in layers if module_name == one or module_name.startswith(f"{one}.")), None)
        inner = _renamed(module_name[len(prefix) + 1 :], layers[prefix]) if prefix is not None else ""
        if inner is None:
            continue
        own = module_name if prefix is None else f"{prefix}.{inner}".rstrip(".")
        # Not by a state dict: making one would gather the experts of a layer at once.
        tensors = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        lasting = module._buffers.items()
        tensors |= {
            name: one for name, one in lasting if one is not None and name not in module._non_persistent_buffers_set
        }
        for name, tensor in tensors.items():
            yield f"{own}.{name}".lstrip("."), tensor


def _renamed(name: str, layer: Any) -> str | None:
    """transformers' name of a module within AutoEP's layer; None for experts and aliases, which are not taken here.

    AutoEP's router holds a linear layer `gate`, where transformers' router is called so and holds the weight itself.
    """
    qwen = layer.model_family == "qwen3_moe"
    names = {
        "shared_experts": "shared_expert" if qwen else "shared_experts",
        "shared_experts_gate": "shared_expert_gate",
    }
    first, _, rest = name.partition(".")
    if name in ("", "router", "router.gate"):
        return "gate" if name else ""
    if first not in names:
        return None
    return f"{names[first]}.{rest}" if rest else names[first]


def _whole(weight: nn.Parameter, layer: Any) -> Tensor | None:
    """The experts of all processes as one tensor (experts, rows, columns) on rank 0; None elsewhere."""
    group, size = layer.ep_group, layer.ep_size
    members = dist.get_process_group_ranks(group)
    with zero.gathered([weight]):
        if 0 not in members:  # other groups hold the same
            return None
        values, main = weight.detach(), ranks.is_main()
        whole = torch.empty((layer.num_experts, *values.shape[1:]), dtype=values.dtype) if main else None
        # One expert at a time, so that no process but rank 0 holds more than its own.
        for number in range(layer.num_local_experts):
            mine = values[number].contiguous()
            pieces = [torch.empty_like(mine) for _ in range(size)] if main else None
            # Every process of the group must call it for every expert, in the same order.
            dist.gather(mine, pieces, dst=0, group=group)
            for place, piece in enumerate(pieces or ()):
                assert whole is not None
                # Neighbours by rank hold neighbouring experts: place by place they make up the layer.
                whole[place * layer.num_local_experts + number].copy_(piece)
    return whole
