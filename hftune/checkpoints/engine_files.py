"""The files of DeepSpeed's engine under ZeRO 1 to 3, opened as `ShardedState`."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hftune.checkpoints.integrity import read_record
from hftune.checkpoints.sharded_state import ShardedState, group_settings, make_shard
from hftune.errors import ManifestError, shown
from hftune.opening.torch_file import DEEPSPEED, load_torch

MODEL_FILE = "mp_rank_00_model_states.pt"
UNIVERSAL = "zero"
"""The folder in which DeepSpeed's `ds_to_universal` has a folder a parameter."""
# What taking dicts and tensors apart raises where they are others than DeepSpeed writes.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError, StopIteration)
_RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")


def open_engine(folder: Path) -> ShardedState:
    """What DeepSpeed's engine wrote in `global_stepN`, under any ZeRO stage above 0.

    Raises:
        ManifestError: There is no such state, or it is of a kind that cannot be taken apart.
    """
    try:
        return _open(folder)
    except _MALFORMED as problem:
        raise ManifestError(
            f"the state in {folder} is not put together as DeepSpeed does it: {type(problem).__name__} "
            f"{shown(problem)}",
            place=str(folder),
            fix="take another checkpoint",
        ) from problem


def _open(folder: Path) -> ShardedState:
    if (folder / UNIVERSAL).is_dir():
        raise ManifestError(
            f"{folder} was made by ds_to_universal",
            place=str(folder),
            fix="give the checkpoint that it was made from: hftune reads it for any number of processes and any stage",
        )
    files = {int(match[1]): file for file in folder.glob("*_optim_states.pt") if (match := _RANK.search(file.name))}
    if not files:
        raise ManifestError(f"no ZeRO state is in {folder}", place=str(folder), fix="give a checkpoint of ZeRO 1 to 3")
    # Their shards are of different parameters, so that ranks cannot be joined end to end.
    experts = any(folder.glob("*_expert_*_model_states.pt")) or _wrote_experts(folder)
    split = any("_mp_rank_00_" not in file.name for file in folder.glob("*_optim_states.pt"))
    if sorted(files) != list(range(len(files))) or split or experts:
        raise ManifestError(
            f"{folder} was written by tensor or expert parallel processes, or some of its files are missing",
            place=str(folder),
            fix="resume with the processes that wrote it; its whole weights are next to it",
        )
    states = [load(files[rank])["optimizer_state_dict"] for rank in range(len(files))]
    # By number: as text rank 10 would come before rank 2.
    models = sorted(folder.glob("*_model_states.pt"), key=lambda file: [int(n) for n in re.findall(r"\d+", file.name)])
    about = load(folder / MODEL_FILE if (folder / MODEL_FILE).is_file() else models[0])
    make = _stage_3 if "fp32_flat_groups" in states[0] else _stage_1_or_2
    return make(states, about, models)


def _wrote_experts(folder: Path) -> bool:
    """Whether experts were spread over processes; only the record says so under ZeRO-3, where they have no files."""
    record = read_record(folder.parent)
    return record is not None and int(record.get("expert_parallel_size", 1)) > 1


def load(file: Path) -> Any:
    """A file of DeepSpeed's, mapped into memory; of classes it may hold only those of DeepSpeed's own state."""
    return load_torch(file, allow=DEEPSPEED, mmap=True)


def _stage_1_or_2(states: list[dict[str, Any]], about: dict[str, Any], models: list[Path]) -> ShardedState:
    shapes = _shapes(about)
    ranks = []
    for state in states:
        shards = []
        base = state["base_optimizer_state"]
        for number, addresses in enumerate(state["param_slice_mappings"]):
            starts = {name: (address.start, address.numel) for name, address in addresses.items()}
            weights = state["single_partition_of_fp32_groups"][number].flatten()
            # The last rank's tensor is padded to be as long as the others; its states are, or are not, by optimizer.
            padding = state.get("group_paddings", [0] * (number + 1))[number]
            group = base["param_groups"][number]
            held = base["state"].get(group["params"][0], {})
            sizes = {weights.numel(), weights.numel() + padding}
            whole = sum(math.prod(shapes[name]) for name in starts) if group.get("use_muon") else None
            shards.append(make_shard(weights, held, starts, sizes, whole=whole))
        ranks.append(shards)
    # `module` holds the 16-bit copy of everything: what is neither trained, nor a buffer, nor a second name, is frozen.
    others = {*shapes, *(about.get("buffer_names") or ()), *(about.get("shared_params") or ())}
    kept = {**(about.get("module") or {}), **(about.get("frozen_param_fragments") or {})}
    frozen = {name: partial(_same, value) for name, value in kept.items() if name not in others}
    stage = int(states[0].get("zero_stage", 1))
    return _described(ShardedState(stage, shapes, _groups(about), ranks, frozen=frozen), about, states)


def _stage_3(states: list[dict[str, Any]], about: dict[str, Any], models: list[Path]) -> ShardedState:
    world, ranks = len(states), []
    for rank, state in enumerate(states):
        shards = []
        order = [number for group in state["optimizer_state_dict"]["param_groups"] for number in group["params"]]
        for number, part in enumerate(about["param_shapes"]):
            # ZeRO-3 cuts each parameter into as many equal parts as there are ranks, the last ones short or empty.
            starts, offset = {}, 0
            for name, shape in part.items():
                size = -(-math.prod(shape) // world)
                starts[name] = (offset, max(0, min(size, math.prod(shape) - rank * size)))
                offset += size
            weights = state["fp32_flat_groups"][number].flatten()
            held = state["optimizer_state_dict"]["state"].get(order[number], {})
            shards.append(make_shard(weights, held, starts, {weights.numel()}))
        ranks.append(shards)
    frozen = {}
    if about.get("frozen_param_shapes"):
        parts = [load(file).get("frozen_param_fragments") or {} for file in models]
        frozen = {
            name: partial(_joined, [part[name] for part in parts], tuple(shape))
            for name, shape in about["frozen_param_shapes"].items()
        }
    return _described(ShardedState(3, _shapes(about), _groups(about), ranks, frozen=frozen), about, states)


def _described(sharded: ShardedState, about: dict[str, Any], states: list[dict[str, Any]]) -> ShardedState:
    sharded.counters = {key: about[key] for key in ("global_steps", "global_samples", "skipped_steps") if key in about}
    names = set(about.get("buffer_names") or ())
    sharded.buffers = {name: value for name, value in (about.get("module") or {}).items() if name in names}
    sharded.shared = dict(about.get("shared_params") or {})
    base = states[0].get("base_optimizer_state") or states[0].get("optimizer_state_dict") or states[0]
    sharded.settings = group_settings(base.get("param_groups", ()))
    return sharded


def _shapes(about: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for part in about["param_shapes"] for name, shape in part.items()}


def _same(value: Tensor) -> Tensor:
    return value


def _joined(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """A parameter from the parts that ZeRO-3's ranks hold, the last of which may be padded."""
    return torch.cat([part.flatten() for part in parts])[: math.prod(shape)].reshape(shape)


def _groups(about: dict[str, Any]) -> list[list[str]]:
    return [list(part) for part in about["param_shapes"]]
