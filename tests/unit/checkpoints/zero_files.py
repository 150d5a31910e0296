"""Checkpoints as ZeRO writes them, made by hand: the same parameters cut for any number of ranks."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor

PARAMETERS = [{"a": torch.arange(6.0).reshape(3, 2), "b": torch.arange(10.0, 14.0)}, {"c": torch.tensor([20.0])}]
"""Two groups; moments are the values + 100, and + 200."""


def write(folder: Path, stage: int, world: int, groups: list[dict[str, Tensor]] | None = None) -> Path:
    """A `checkpoint-1` with the pieces of `world` ranks."""
    groups = groups or PARAMETERS
    engine = folder / "checkpoint-1" / "global_step1"
    engine.mkdir(parents=True)
    (engine.parent / "latest").write_text("global_step1")
    (engine.parent / "trainer_state.json").write_text(json.dumps({"global_step": 1}))
    shapes = [OrderedDict((name, value.shape) for name, value in group.items()) for group in groups]
    about = {"param_shapes": shapes, "buffer_names": [], "module": {}, "shared_params": {}, "global_steps": 1}
    for rank in range(world):
        state = _stage_3(groups, rank, world) if stage == 3 else _stage_2(groups, rank, world, stage)
        torch.save({"optimizer_state_dict": state}, engine / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3:
            torch.save(about, engine / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage != 3:
        torch.save(about, engine / "mp_rank_00_model_states.pt")
    return engine.parent


def _stage_2(groups: list[dict[str, Tensor]], rank: int, world: int, stage: int) -> dict[str, Any]:
    """Each group end to end, cut into equal parts; padding, of which the weights are freed, fills the last."""
    weights, states, mappings, paddings = [], {}, [], []
    for number, group in enumerate(groups):
        flat = torch.cat([value.flatten() for value in group.values()])
        size = -(-len(flat) // world)
        mine = flat[rank * size : (rank + 1) * size].clone()
        paddings.append(size - len(mine))
        weights.append(mine)
        states[number] = _moments(torch.nn.functional.pad(mine, (0, paddings[-1])))
        starts, offset = OrderedDict(), 0
        for name, value in group.items():
            first, last = max(offset, rank * size), min(offset + value.numel(), (rank + 1) * size)
            if first < last:
                starts[name] = fragment_address(start=first - rank * size, numel=last - first)
            offset += value.numel()
        mappings.append(starts)
    return {
        "zero_stage": stage,
        "base_optimizer_state": {"state": states, "param_groups": [{"params": [n]} for n in range(len(groups))]},
        "single_partition_of_fp32_groups": weights,
        "group_paddings": paddings,
        "param_slice_mappings": mappings,
    }


def _stage_3(groups: list[dict[str, Tensor]], rank: int, world: int) -> dict[str, Any]:
    """Each parameter cut into equal parts, the last of which is padded."""
    weights, states = [], {}
    for number, group in enumerate(groups):
        parts = []
        for value in group.values():
            size = -(-value.numel() // world)
            part = value.flatten()[rank * size : (rank + 1) * size]
            parts.append(torch.nn.functional.pad(part, (0, size - len(part))))
        weights.append(torch.cat(parts))
        states[number] = _moments(weights[-1])
    groups_of_optimizer = [{"params": [number]} for number in range(len(groups))]
    return {
        "zero_stage": 3,
        "optimizer_state_dict": {"state": states, "param_groups": groups_of_optimizer},
        "fp32_flat_groups": weights,
    }


def _moments(weights: Tensor) -> dict[str, Any]:
    return {"step": torch.tensor(7.0), "exp_avg": weights + 100, "exp_avg_sq": weights + 200}
