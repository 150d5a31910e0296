"""Where DeepSpeed keeps a model's parameters: the only place that gathers them, or looks into ZeRO's optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hftune.compat.patches import no_deepspeed_config


def is_partitioned(parameter: torch.Tensor) -> bool:
    """Whether ZeRO-3 partitions this parameter, so that its `data` is empty here."""
    return hasattr(parameter, "ds_id")


@contextmanager
def gathered(parameters: Iterable[torch.Tensor], *, write: bool = False) -> Iterator[None]:
    """Make the full values of `parameters` available in the block.

    Args:
        parameters: Parameters, partitioned or not; those that are not are left as they are.
        write: Whether the block changes them. Every rank must then write the same values; rank 0's are kept.
    """
    partitioned = [parameter for parameter in parameters if is_partitioned(parameter)]
    if not partitioned:
        yield
        return
    import deepspeed  # takes seconds, and is needed only where ZeRO-3 is at work

    with deepspeed.zero.GatheredParameters(partitioned, modifier_rank=0 if write else None):
        yield


def is_any_partitioned(module: torch.nn.Module) -> bool:
    """Whether ZeRO-3 holds a part of the module's parameters on each rank."""
    return any(is_partitioned(parameter) for parameter in module.parameters())


def register_external_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter) -> None:
    """Have ZeRO-3 gather `parameter` while `module` runs, forward and backward, though another module owns it.

    It may be partitioned already, or later, with the optimizer, as quantised models are.
    """
    import deepspeed

    deepspeed.zero.register_external_parameter(module, parameter)


def reset_fetch_order(engine: Any) -> None:
    """Have ZeRO-3 learn again in which order modules run, after passes unlike those of training.

    It fetches ahead in the order of the passes before (DeepSpeed 0.19). A head that the next pass does not run, because
    TRL computes the loss without logits, would still be on its way when it is to be partitioned again: an assertion.
    """
    coordinator = _coordinator(engine)
    if coordinator is not None and not coordinator.is_invalid_trace():
        coordinator._invalidate_trace()


def release_fetched(engine: Any) -> None:
    """Release what ZeRO-3 has fetched ahead for a backward pass that does not come, as after an evaluation.

    DeepSpeed 0.19 does so as the next forward pass begins. Until then such a parameter can be gathered for a
    checkpoint, but not partitioned again: an assertion.
    """
    coordinator = _coordinator(engine)
    if coordinator is not None:
        coordinator._clean_inflight_param_registry()


def _coordinator(engine: Any) -> Any:
    """ZeRO-3's object that fetches parameters ahead; None without ZeRO-3."""
    # By attributes: importing ZeRO's classes would import DeepSpeed where it is not used.
    offload = getattr(getattr(engine, "optimizer", None), "parameter_offload", None)
    return None if offload is None else offload.get_param_coordinator()


def local_values(parameter: torch.Tensor) -> torch.Tensor:
    """The values that this rank holds: all, or its flat shard of a parameter that ZeRO-3 partitions."""
    held: Any = parameter
    if not is_partitioned(held):
        return parameter.detach()
    part = held.ds_tensor
    # All ranks have equally many elements; behind the parameter's end they are whatever the memory held before.
    begun = held.ds_zero_partition_rank * part.numel()
    values: torch.Tensor = part.detach()[: max(0, held.ds_numel - begun)]
    return values


def local_shard(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole weight: rows or columns where AutoTP has split the parameter, else all of it.

    Args:
        parameter: Of a live model.
        whole: As it is saved.
    """
    about = getattr(parameter, "ds_autotp_universal_checkpoint_meta", None)
    sizes = (about or {}).get("partition_sizes")
    if not about or sizes is None:
        return whole
    from deepspeed.utils import groups

    rank = groups.get_tensor_model_parallel_rank()
    # By the sizes and the dimension that AutoTP has noted on the parameter, not by equal parts counted here.
    return whole.split(list(sizes), dim=about["partition_dim"])[rank]


def full_numel(parameter: torch.nn.Parameter) -> int:
    """Number of elements of the whole parameter, however it is partitioned, or packed by bitsandbytes."""
    # bitsandbytes keeps two weights a byte, and their shape in the quantisation state.
    packed: Any = getattr(getattr(parameter, "quant_state", None), "shape", None)
    if packed is not None:
        return math.prod(packed)
    ds_numel: Any = getattr(parameter, "ds_numel", None)
    return int(ds_numel) if ds_numel is not None else parameter.numel()


@contextmanager
def no_partitioning() -> Iterator[None]:
    """Make whole models in the block, also under ZeRO-3, whose config transformers would otherwise use."""
    with no_deepspeed_config():
        yield


def optimizer_members(optimizer: Any) -> list[list[torch.Tensor]]:
    """The model's parameters behind each group of an optimizer, which under ZeRO holds flat shards of them instead.

    Args:
        optimizer: A torch optimizer or ZeRO's around one, with accelerate's wrapper or without.
    """
    layers: list[Any] = [optimizer, getattr(optimizer, "optimizer", None)]
    # The outermost first: a wrapper shows the groups of the optimizer in it, which under ZeRO hold flat shares.
    for layer in layers:
        if hasattr(layer, "sub_group_to_group_id"):  # ZeRO-3 cuts groups into sub-groups
            members: list[list[torch.Tensor]] = [[] for _ in layer.param_groups]
            for number, group in layer.sub_group_to_group_id.items():
                members[group] += layer.fp16_groups[number]
            return members
        # Stage 1 and 2, the optimizer of bf16 without ZeRO, and older names of the same.
        for name in ("bit16_groups", "bf16_groups", "fp16_groups"):
            if hasattr(layer, name):
                return [list(group) for group in getattr(layer, name)]
    return [list(group["params"]) for group in optimizer.param_groups]
