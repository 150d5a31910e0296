"""Weights and optimizer state of any checkpoint by the name of the parameter, whoever wrote it and in how many shards.

ZeRO writes a file a rank, with flat tensors in which each rank's share of the parameters lies end to end; another
number of processes, or another stage, cuts them elsewhere. Files are mapped, not read: what is asked for is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hftune.errors import ManifestError

WEIGHTS = "fp32"
"""The key under which the weights themselves are read, in the precision in which the optimizer keeps them."""
MUON_MOMENTUM = "momentum_buffer"
"""ZeRO-1 and 2 keep it for whole matrices on every rank that has a part of them; SGD's, of that name, is cut."""
ROW = "/"
"""Between the name and the number of a state that has several rows of elements."""


@dataclass
class Shard:
    """What one rank holds of one group of parameters.

    Attributes:
        tensors: WEIGHTS and the optimizer's states, each (elements,), cut alike.
        starts: Where each parameter begins in `tensors`, and how many elements of it are here.
        whole: States that lie here for every parameter of the shard as a whole (Muon's momentum under ZeRO-1 and 2).
        scalars: States without elements, such as the number of steps.
        unsplittable: Names of states that cannot be cut by parameter.
    """

    tensors: dict[str, Tensor]
    starts: dict[str, tuple[int, int]]
    whole: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    unsplittable: list[str] = field(default_factory=list)


@dataclass
class ShardedState:
    """All of a checkpoint.

    Attributes:
        stage: ZeRO stage; None where no ZeRO wrote it.
        shapes: Of each parameter that was trained, by the name in the model.
        groups: Names of each group, as the optimizer that wrote them had it.
        ranks: For each rank its shard of each group.
        counters: DeepSpeed's own: `global_steps`, `global_samples`, `skipped_steps`.
        buffers: Of the model.
        frozen: Reads a parameter that was not trained; empty where those were not saved.
        shared: Second names of parameters that are tied, with the name of the other.
        settings: Of each group of the optimizer, without its members: rates, decay, and what some optimizers count.
    """

    stage: int | None
    shapes: dict[str, tuple[int, ...]]
    groups: list[list[str]]
    ranks: list[list[Shard]]
    counters: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    frozen: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._group_of = {name: number for number, names in enumerate(self.groups) for name in names}

    @property
    def world_size(self) -> int:
        """Processes that each wrote a shard."""
        return len(self.ranks)

    def states(self, name: str) -> list[str]:
        """Keys that `read` takes for a parameter, WEIGHTS first."""
        first = self._shards(name)[0]
        return list(dict.fromkeys([*first.tensors, *first.whole]))

    def scalars(self, name: str) -> dict[str, Any]:
        """States of a parameter that are no tensors of its size."""
        return self._shards(name)[0].scalars

    def read(self, name: str, key: str, begin: int = 0, numel: int | None = None) -> Tensor:
        """Elements `begin` to `begin + numel` of a parameter's weights or state, (numel,); all without `numel`."""
        total = math.prod(self.shapes[name])
        end = total if numel is None else begin + numel
        shards = self._shards(name)
        if key in shards[0].whole:
            return _whole(shards[0], self.shapes, name, key)[begin:end].clone()
        # A copy of its own: the file behind a mapped tensor may be renamed or removed while this one is used.
        result = torch.empty(end - begin, dtype=shards[0].tensors[key].dtype)
        seen = 0  # elements of the parameter in the shards of the ranks before
        for shard in shards:
            start, held = shard.starts[name]
            first, last = max(begin, seen), min(end, seen + held)
            if first < last:
                offset = start + first - seen
                result[first - begin : last - begin] = shard.tensors[key][offset : offset + last - first]
            seen += held
        assert seen == total, f"{name}: {seen} of {total} elements in the checkpoint"
        return result

    def unsplittable_states(self) -> list[str]:
        """States that do not belong to single weights: of blocks in 8-bit optimizers, of rows and columns in others."""
        return sorted({key for rank in self.ranks for shard in rank for key in shard.unsplittable})

    def _shards(self, name: str) -> list[Shard]:
        group = self._group_of[name]
        return [rank[group] for rank in self.ranks if name in rank[group].starts]


def group_settings(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """An optimizer's groups without their parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def make_shard(
    weights: Tensor,
    state: dict[str, Any],
    starts: dict[str, tuple[int, int]],
    sizes: set[int],
    whole: int | None = None,
) -> Shard:
    """Sort the states of a flat tensor by whether they can be cut as it is.

    Args:
        weights: The flat tensor.
        state: The optimizer's states for it.
        starts: What lies in it.
        sizes: Elements of a state that is cut alike, with padding and without.
        whole: Elements of all parameters of which a part is in it, for Muon's momentum.
    """
    shard = Shard({WEIGHTS: weights}, starts)
    # bitsandbytes puts states that must not be cast to the dtype of the weights into a dict of their own.
    wrapped = [value for value in state.values() if isinstance(value, dict)]
    plain = {key: value for key, value in state.items() if not isinstance(value, dict)}
    for key, value in [*plain.items(), *(item for values in wrapped for item in values.items())]:
        if isinstance(value, int | float | None) or (torch.is_tensor(value) and value.dim() == 0):
            shard.scalars[key] = value
        elif not torch.is_tensor(value):
            shard.unsplittable.append(key)
        elif value.dim() == 1 and value.numel() == whole and key == MUON_MOMENTUM:
            shard.whole[key] = value
        # Integers are codes of a block-wise quantised state, which mean nothing without their block's scale.
        elif value.dim() == 1 and value.numel() in sizes and value.is_floating_point():
            shard.tensors[key] = value
        elif value.dim() == 2 and value.shape[1] in sizes and value.is_floating_point():
            shard.tensors |= {f"{key}{ROW}{number}": row for number, row in enumerate(value)}  # AdEMAMix's two averages
        else:
            shard.unsplittable.append(key)
    return shard


def _whole(shard: Shard, shapes: dict[str, tuple[int, ...]], name: str, key: str) -> Tensor:
    """A parameter's elements in a tensor that has all parameters of a shard as a whole, end to end."""
    order = sorted(shard.starts, key=lambda each: shard.starts[each][0])
    offset = sum(math.prod(shapes[before]) for before in order[: order.index(name)])
    return shard.whole[key][offset : offset + math.prod(shapes[name])]


def from_optimizer(
    state: dict[str, Any], names: list[list[str]], weights: dict[str, Callable[[], Tensor]]
) -> ShardedState:
    """The state of a torch optimizer, whose file knows parameters by number only.

    Args:
        state: Its `state_dict()`.
        names: Of each of its groups, in the order of the groups' parameters.
        weights: Reads a parameter.

    Raises:
        ManifestError: The groups are not of the same sizes.
    """
    numbers = [list(group["params"]) for group in state["param_groups"]]
    if [len(group) for group in numbers] != [len(group) for group in names]:
        raise ManifestError(
            f"the checkpoint's optimizer has groups of {[len(group) for group in numbers]} parameters, this run's has "
            f"{[len(group) for group in names]}",
            place="--resume_from_checkpoint",
            fix="resume with the adapter, the frozen parameters and the rates of the run that wrote it",
        )
    shapes: dict[str, tuple[int, ...]] = {}
    shards, groups = [], []
    # A group a parameter, so that each is read alone.
    for number, name in zip(chain(*numbers), chain(*names), strict=True):
        value = weights[name]()
        shapes[name] = tuple(value.shape)
        held = {
            key: held.flatten() if torch.is_tensor(held) and held.shape == value.shape and held.dim() > 0 else held
            for key, held in state["state"].get(number, {}).items()
        }
        shards.append(make_shard(value.flatten(), held, {name: (0, value.numel())}, {value.numel()}))
        groups.append([name])
    return ShardedState(None, shapes, groups, [shards], settings=group_settings(state["param_groups"]))


def exported_name(name: str) -> str:
    """The name under which peft and transformers save a live parameter."""
    for part in (".default", ".modules_to_save"):
        name = name.removesuffix(part).replace(f"{part}.", ".")
    return name
