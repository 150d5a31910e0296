"""The files of DeepSpeed's engine, opened as `ShardedState`: ZeRO 1 to 3, and what `ds_to_universal` makes of them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hftune.checkpoints.integrity import read_record
from hftune.checkpoints.sharded_state import WEIGHTS, Shard, ShardedState, group_settings, make_shard, numel_of
from hftune.errors import ManifestError, shown
from hftune.opening.files import read_bytes
from hftune.opening.folders import unsafe_entry
from hftune.opening.safetensors_file import is_plain_name
from hftune.opening.torch_file import DEEPSPEED, load_torch

MODEL_FILE = "mp_rank_00_model_states.pt"
UNIVERSAL = "zero"
"""The folder in which DeepSpeed's `ds_to_universal` has a folder a parameter."""
_TAG_LIMIT = 4096
# What taking dicts and tensors apart raises where they are others than DeepSpeed writes.
_ODD = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError, StopIteration)
_RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")


def engine_folder(checkpoint: str | Path) -> Path | None:
    """The folder of a checkpoint in which DeepSpeed's engine wrote its state; None where it did not."""
    folder = Path(checkpoint)
    for tag in ("latest", "latest_universal"):
        if (folder / tag).is_file():
            return folder / read_tag(folder / tag)
    found = next(iter(sorted(folder.glob("global_step*"))), None)
    if found is not None:
        _refuse_stray(found)
    return found


def read_tag(file: Path) -> str:
    """The folder that DeepSpeed's `latest` names.

    Raises:
        ManifestError: It names no folder beside it: DeepSpeed would read whatever it leads to.
    """
    content = read_bytes(file, limit=_TAG_LIMIT)
    name = content.decode("utf-8", "replace").strip()
    if not is_plain_name(name):
        raise ManifestError(
            f"{file} says {shown(ascii(name))}, which is no folder beside it",
            place=str(file),
            fix="take a checkpoint as DeepSpeed wrote it, which names a folder of its own, such as global_step100",
        )
    _refuse_stray(file)
    _refuse_stray(file.parent / name)
    return name


def _refuse_stray(place: Path) -> None:
    problem = unsafe_entry(place, place.parent)
    if problem is not None:
        raise problem


def open_engine(folder: Path) -> ShardedState:
    """What DeepSpeed's engine wrote in `global_stepN`, under any ZeRO stage above 0, or `ds_to_universal` made of it.

    Raises:
        ManifestError: There is no such state, or it is of a kind that cannot be taken apart.
    """
    try:
        return _open(folder)
    except _ODD as problem:
        raise ManifestError(
            f"the state in {folder} is not put together as DeepSpeed does it: {type(problem).__name__} "
            f"{shown(problem)}",
            place=str(folder),
            fix="take another checkpoint",
        ) from problem


def _open(folder: Path) -> ShardedState:
    if (folder / UNIVERSAL).is_dir():
        return _universal(folder)
    files = {int(match[1]): file for file in folder.glob("*_optim_states.pt") if (match := _RANK.search(file.name))}
    if not files:
        raise ManifestError(f"no ZeRO state is in {folder}", place=str(folder), fix="give a checkpoint of ZeRO 1 to 3")
    experts = any(folder.glob("*_expert_*_model_states.pt")) or _wrote_experts(folder)
    split = any("_mp_rank_00_" not in file.name for file in folder.glob("*_optim_states.pt"))
    if sorted(files) != list(range(len(files))) or split or experts:
        raise ManifestError(
            f"{folder} was written by tensor or expert parallel processes, or some of its files are missing",
            place=str(folder),
            fix="go on with the processes that wrote it; its weights lie whole beside it",
        )
    states = [load(files[rank])["optimizer_state_dict"] for rank in range(len(files))]
    models = sorted(folder.glob("*_model_states.pt"), key=lambda file: [int(n) for n in re.findall(r"\d+", file.name)])
    about = load(folder / MODEL_FILE if (folder / MODEL_FILE).is_file() else models[0])
    make = _stage_3 if "fp32_flat_groups" in states[0] else _stage_1_or_2
    return make(states, about, models)


def _wrote_experts(folder: Path) -> bool:
    """Whether experts were dealt out, of which ZeRO-3 has no files of their own."""
    record = read_record(folder.parent)
    return record is not None and int(record.get("expert_parallel_size", 1)) > 1


def load(file: Path) -> Any:
    """A file of DeepSpeed's, mapped into memory; of classes it may hold only those of DeepSpeed's own state."""
    return load_torch(file, allow=DEEPSPEED, mmap=True)


def _stage_1_or_2(states: list[dict[str, Any]], about: dict[str, Any], models: list[Path]) -> ShardedState:
    shapes = _shapes(about)
    ranks = []
    for state in states:
        shares = []
        base = state["base_optimizer_state"]
        for number, addresses in enumerate(state["param_slice_mappings"]):
            starts = {name: (address.start, address.numel) for name, address in addresses.items()}
            weights = state["single_partition_of_fp32_groups"][number].flatten()
            padding = state.get("group_paddings", [0] * (number + 1))[number]
            group = base["param_groups"][number]
            held = base["state"].get(group["params"][0], {})
            sizes = {weights.numel(), weights.numel() + padding}
            whole = sum(numel_of(shapes[name]) for name in starts) if group.get("use_muon") else None
            shares.append(make_shard(weights, held, starts, sizes, whole=whole))
        ranks.append(shares)
    apart = {*shapes, *(about.get("buffer_names") or ()), *(about.get("shared_params") or ())}
    kept = {**(about.get("module") or {}), **(about.get("frozen_param_fragments") or {})}
    frozen = {name: partial(_same, value) for name, value in kept.items() if name not in apart}
    stage = int(states[0].get("zero_stage", 1))
    return _described(ShardedState(stage, shapes, _groups(about), ranks, frozen=frozen), about, states)


def _stage_3(states: list[dict[str, Any]], about: dict[str, Any], models: list[Path]) -> ShardedState:
    world, ranks = len(states), []
    for rank, state in enumerate(states):
        shares = []
        order = [number for group in state["optimizer_state_dict"]["param_groups"] for number in group["params"]]
        for number, part in enumerate(about["param_shapes"]):
            starts, offset = {}, 0
            for name, shape in part.items():
                size = -(-numel_of(shape) // world)
                starts[name] = (offset, max(0, min(size, numel_of(shape) - rank * size)))
                offset += size
            weights = state["fp32_flat_groups"][number].flatten()
            held = state["optimizer_state_dict"]["state"].get(order[number], {})
            shares.append(make_shard(weights, held, starts, {weights.numel()}))
        ranks.append(shares)
    frozen = {}
    if about.get("frozen_param_shapes"):
        parts = [load(file).get("frozen_param_fragments") or {} for file in models]
        frozen = {
            name: partial(_joined, [part[name] for part in parts], tuple(shape))
            for name, shape in about["frozen_param_shapes"].items()
        }
    return _described(ShardedState(3, _shapes(about), _groups(about), ranks, frozen=frozen), about, states)


def _described(pieces: ShardedState, about: dict[str, Any], states: list[dict[str, Any]]) -> ShardedState:
    pieces.counters = {key: about[key] for key in ("global_steps", "global_samples", "skipped_steps") if key in about}
    names = set(about.get("buffer_names") or ())
    pieces.buffers = {name: value for name, value in (about.get("module") or {}).items() if name in names}
    pieces.shared = dict(about.get("shared_params") or {})
    base = states[0].get("base_optimizer_state") or states[0].get("optimizer_state_dict") or states[0]
    pieces.settings = group_settings(base.get("param_groups", ()))
    return pieces


def _universal(folder: Path) -> ShardedState:
    """One share a parameter, each with a file a state. Shapes are not in the files of every stage; elements are."""
    common = load(folder / UNIVERSAL / "optimizer_state.pt")
    about = load(next(iter(sorted(folder.glob("*_model_states.pt")))))
    shapes, shares, frozen = _shapes(about), [], {}
    for place in sorted(path for path in (folder / UNIVERSAL).iterdir() if path.is_dir()):
        tensors, scalars = {}, {}
        for file in sorted(place.glob("*.pt")):
            value = load(file)
            value = value["param"] if isinstance(value, dict) else value
            if torch.is_tensor(value) and value.dim() > 0:
                tensors[file.stem] = value.flatten()
            else:
                scalars[file.stem] = value
        if place.name in shapes:
            count = numel_of(shapes[place.name])
            shares.append(Shard(tensors, {place.name: (0, count)}, scalars=scalars or _steps(common)))
        else:
            frozen[place.name] = partial(_same, tensors[WEIGHTS])
    groups = [[name for name in share.starts] for share in shares]
    return _described(ShardedState(None, shapes, groups, [shares], frozen=frozen), about, [common])


def _steps(common: dict[str, Any]) -> dict[str, Any]:
    """The number of steps, which a universal checkpoint made of stage 3 has in one place for all."""
    states = common.get("optimizer_state_dict", {}).get("state", {})
    return {"step": states[0]["step"]} if states and "step" in states[0] else {}


def _shapes(about: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for part in about["param_shapes"] for name, shape in part.items()}


def _same(value: Tensor) -> Tensor:
    return value


def _joined(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """A parameter from the parts that ZeRO-3's ranks hold, the last of which may be padded."""
    return torch.cat([part.flatten() for part in parts])[: numel_of(shape)].reshape(shape)


def _groups(about: dict[str, Any]) -> list[list[str]]:
    return [list(part) for part in about["param_shapes"]]
