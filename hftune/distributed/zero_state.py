"""Fill the state of a live optimizer from elsewhere: ZeRO's flat shards of this rank, or plain parameters.

What is given to DeepSpeed is what it would have written on this rank itself, through its own `load_state_dict`, so
that offloading, precisions and the 16-bit copies are its own business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Fragment:
    """Consecutive elements of a parameter in a flat tensor: those from `begin` on, at `start`."""

    name: str
    begin: int
    start: int
    numel: int


@dataclass(frozen=True)
class Slot:
    """A tensor that the optimizer updates: a flat shard of a group, or a parameter.

    Attributes:
        number: Under which the optimizer's state dict has its states.
        weights: The tensor itself.
        parts: What lies in it.
        members: Names of all parameters of its group, also of those that lie on other ranks.
    """

    number: int
    weights: Tensor
    parts: list[Fragment]
    members: list[str]


LAYOUTS = {"DeepSpeedZeroOptimizer": 2, "BF16_Optimizer": 2, "DeepSpeedZeroOptimizer_Stage3": 3}
"""ZeRO's optimizers whose layout is known here, and whether they are cut as stage 2 or as stage 3 does it."""

Read = Callable[[str, int, int], Tensor]
"""(name, first element, elements) to a flat tensor."""


def layout_of(optimizer: Any) -> int | None:
    """The ZeRO layout of an optimizer: 2 or 3, 0 for torch's own; None for any other."""
    name = type(optimizer).__name__
    if name in LAYOUTS:
        return LAYOUTS[name]
    return 0 if isinstance(optimizer, torch.optim.Optimizer) else None


def slots(optimizer: Any, names: dict[Tensor, str]) -> list[Slot]:
    """Every tensor that an optimizer updates on this rank.

    Args:
        optimizer: ZeRO's, or torch's.
        names: Of the model's parameters.
    """
    # Stage 1 is cut as stage 2: both partition what the optimizer updates, one flat tensor a group.
    found = {0: _plain, 2: _stage_2, 3: _stage_3}
    layout = layout_of(optimizer)
    assert layout is not None, type(optimizer)
    return found[layout](optimizer, names)


def _plain(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> list[Slot]:
    members = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [
        Slot(number, parameter, [Fragment(names[parameter], 0, 0, parameter.numel())], [names[parameter]])
        for number, parameter in enumerate(members)
    ]


def _stage_2(optimizer: Any, names: dict[Tensor, str]) -> list[Slot]:
    groups = getattr(optimizer, "bf16_groups", None) or optimizer.bit16_groups
    result = []
    for number, (flat, group) in enumerate(zip(_flat_weights(optimizer), groups, strict=True)):
        parts = []
        for parameter in group:
            mapping = parameter._hp_mapping
            if mapping is not None:  # else all of it lies on other ranks
                model, flat_place = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
                parts.append(Fragment(names[parameter], model.start, flat_place.start, flat_place.numel))
        result.append(Slot(number, flat, parts, [names[each] for each in group]))
    return result


def _flat_weights(optimizer: Any) -> list[Tensor]:
    # Stage 1 and 2 have the first name, DeepSpeed's optimizer for bf16 without ZeRO the second.
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        return list(optimizer.single_partition_of_fp32_groups)
    return list(optimizer.fp32_groups_flat_partition)


def _stage_3(optimizer: Any, names: dict[Tensor, str]) -> list[Slot]:
    rank = dist.get_rank(group=optimizer.dp_process_group)
    # The optimizer's state dict counts sub-groups group by group.
    order = sorted(range(len(optimizer.fp16_groups)), key=lambda number: optimizer.sub_group_to_group_id[number])
    result = []
    for place, number in enumerate(order):
        parts, offset = [], 0
        group = optimizer.fp16_groups[number]
        for parameter in group:
            size = parameter.partition_numel()  # rounded up, so that all ranks have equally many; the last are padded
            held = max(0, min(size, parameter.ds_numel - rank * size))
            parts.append(Fragment(names[parameter], rank * size, offset, held))
            offset += size
        flat = optimizer.fp32_partitioned_groups_flat[number]
        result.append(Slot(place, flat, parts, [names[each] for each in group]))
    return result


def filled(slot: Slot, read: Read, dtype: torch.dtype) -> Tensor:
    """The contents of a slot, read part by part, with zeros as padding; in the slot's shape, on the CPU."""
    # Zeros, not empty: padding takes part in norms and in the optimizer's step.
    flat = torch.zeros(slot.weights.numel(), dtype=dtype)
    for part in slot.parts:
        if part.numel:
            flat[part.start : part.start + part.numel] = read(part.name, part.begin, part.numel)
    return flat.reshape(slot.weights.shape)


def filled_whole(slot: Slot, read: Read, sizes: dict[str, int]) -> Tensor:
    """The whole parameters of which a part lies in a slot, end to end."""
    ordered = sorted((part for part in slot.parts if part.numel), key=lambda part: part.start)
    # None of a slot may lie on this rank.
    return torch.cat([read(part.name, 0, sizes[part.name]) for part in ordered] or [torch.zeros(0)])


@dataclass(frozen=True)
class Groups:
    """The settings with which an optimizer's groups resume.

    Attributes:
        settings: Of each group in the checkpoint; none where they are not known.
        rates: Learning rate of each group, with which the next step is made.
    """

    settings: list[dict[str, Any]]
    rates: list[float]


def load_state(optimizer: Any, weights: list[Tensor], states: dict[int, dict[str, Any]], groups: Groups) -> None:
    """Load weights and states of the slots into an optimizer; under ZeRO every rank must call it.

    Args:
        optimizer: As in `slots`.
        weights: For each slot.
        states: For each slot's number.
        groups: As in the checkpoint.
    """
    put = {0: _put_plain, 2: _put_stage_2, 3: _put_stage_3}
    layout = layout_of(optimizer)
    assert layout is not None, type(optimizer)
    put[layout](optimizer, weights, states, groups)


def _put_plain(
    optimizer: torch.optim.Optimizer, weights: list[Tensor], states: dict[int, dict[str, Any]], groups: Groups
) -> None:
    members = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with torch.no_grad():
        for parameter, value in zip(members, weights, strict=True):
            # In place: the model and the optimizer must keep sharing the tensor.
            parameter.copy_(value)
    optimizer.load_state_dict({"state": states, "param_groups": _groups(optimizer.state_dict(), groups)})


def _put_stage_2(optimizer: Any, weights: list[Tensor], states: dict[int, dict[str, Any]], groups: Groups) -> None:
    own = optimizer.state_dict()
    own["single_partition_of_fp32_groups"] = weights
    own["base_optimizer_state"] = {"state": states, "param_groups": _groups(own["base_optimizer_state"], groups)}
    rank = dist.get_rank(group=optimizer.dp_process_group)
    optimizer.load_state_dict({rank: own}, load_optimizer_states=True, load_from_fp32_weights=True)
    optimizer.update_lp_params()  # the 16-bit weights that the model computes with


def _put_stage_3(optimizer: Any, weights: list[Tensor], states: dict[int, dict[str, Any]], groups: Groups) -> None:
    # As around the engine's own loading: parameters are partitioned while their shares change, and the epilogue
    # gathers those again that stage 3 keeps whole.
    optimizer.checkpoint_event_prologue()
    own = optimizer.state_dict()
    order = sorted(range(len(weights)), key=lambda number: optimizer.sub_group_to_group_id[number])
    # Weights by sub-group, as they lie in the optimizer; `slots` gave them group by group.
    own["fp32_flat_groups"] = [value for _, value in sorted(zip(order, weights, strict=True), key=lambda pair: pair[0])]
    own["optimizer_state_dict"] = {"state": states, "param_groups": _groups(own["optimizer_state_dict"], groups)}
    rank = dist.get_rank(group=optimizer.dp_process_group)
    optimizer.load_state_dict({rank: own}, load_optimizer_states=True)
    optimizer.checkpoint_event_epilogue()


# How a step is computed, which follows this run's device; rates come from the schedule.
_OF_THE_MACHINE = ("lr", "foreach", "fused", "capturable", "differentiable")


def _groups(state: dict[str, Any], then: Groups) -> list[dict[str, Any]]:
    """The groups as the checkpoint has them, as torch and DeepSpeed restore them in the same world.

    Some optimizers count there (schedule-free ones). How a step is computed is the affair of this run.
    """
    groups = state["param_groups"]
    assert len(groups) == len(then.rates), f"{len(groups)} groups, {len(then.rates)} rates"
    settings = then.settings if len(then.settings) == len(groups) else [{}] * len(groups)
    return [
        {**group, **{key: kept[key] for key in group if key in kept and key not in _OF_THE_MACHINE}, "lr": rate}
        for group, kept, rate in zip(groups, settings, then.rates, strict=True)
    ]
