"""Weights and optimizer state of any checkpoint by the name of the parameter, whoever wrote it and in how many pieces.

ZeRO writes a file a rank, with flat tensors in which each rank's share of the parameters lies end to end; another
number of processes, or another stage, cuts them elsewhere. Files are mapped, not read: what is asked for is loaded.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
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
_MADV_PAGEOUT = 21  # Linux 5.4


@dataclass
class Shard:
    """One rank's share of one group of parameters.

    Attributes:
        tensors: WEIGHTS and the optimizer's states, each (elements,), cut alike.
        whole: States that lie here for every parameter of the share as a whole (Muon's momentum under ZeRO-1 and 2).
        scalars: States without elements, such as the number of steps.
        odd: Names of states that cannot be cut by parameter.
        starts: Where each parameter of the share begins in `tensors`, and how many elements of it are here.
    """

    tensors: dict[str, Tensor]
    starts: dict[str, tuple[int, int]]
    whole: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)


@dataclass
class ShardedState:
    """All of a checkpoint.

    Attributes:
        stage: ZeRO stage; None where no ZeRO wrote it.
        shapes: Of each parameter that was trained, by the name in the model.
        groups: Names of each group, as the optimizer that wrote them had it.
        ranks: For each rank its share of each group.
        counters: DeepSpeed's own: `global_steps`, `global_samples`, `skipped_steps`.
        buffers: Of the model.
        frozen: Reads a parameter that was not trained; empty where those were not saved.
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
        """Processes among which the state was dealt out."""
        return len(self.ranks)

    def states(self, name: str) -> list[str]:
        """Keys that `read` takes for a parameter, WEIGHTS first."""
        shares = self._shares(name)
        return list(dict.fromkeys([*shares[0].tensors, *shares[0].whole]))

    def scalars(self, name: str) -> dict[str, Any]:
        """States of a parameter that are no tensors of its size."""
        return self._shares(name)[0].scalars

    def read(self, name: str, key: str, begin: int = 0, numel: int | None = None) -> Tensor:
        """Elements `begin` to `begin + numel` of a parameter's weights or state, (numel,); all without `numel`."""
        total = torch.Size(self.shapes[name]).numel()
        end = total if numel is None else begin + numel
        shares = self._shares(name)
        if key in shares[0].whole:
            return _whole(shares[0], self.shapes, name, key)[begin:end].clone()
        result: Tensor | None = None
        seen = 0
        for share in shares:
            start, held = share.starts[name]
            first, last = max(begin, seen), min(end, seen + held)
            if result is None:
                result = torch.empty(end - begin, dtype=share.tensors[key].dtype)
            if first < last:
                offset = start + first - seen
                piece = share.tensors[key][offset : offset + last - first]
                result[first - begin : last - begin] = piece
                release_pages(piece)
            seen += held
        assert result is not None and seen == total, f"{name}: {seen} of {total} elements in the checkpoint"
        return result

    def unsplittable_states(self) -> list[str]:
        """States that do not belong to single weights: of blocks in 8-bit optimizers, of rows and columns in others."""
        return sorted({key for rank in self.ranks for share in rank for key in share.odd})

    def _shares(self, name: str) -> list[Shard]:
        group = self._group_of[name]
        return [rank[group] for rank in self.ranks if name in rank[group].starts]


def group_settings(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
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
    share = Shard({WEIGHTS: weights}, starts)
    # bitsandbytes wraps up what must not be cast to the dtype of the weights.
    wrapped = [value for value in state.values() if isinstance(value, dict)]
    plain = {key: value for key, value in state.items() if not isinstance(value, dict)}
    for key, value in [*plain.items(), *(item for values in wrapped for item in values.items())]:
        if isinstance(value, int | float | None) or (torch.is_tensor(value) and value.dim() == 0):
            share.scalars[key] = value
        elif not torch.is_tensor(value):
            share.odd.append(key)
        elif value.dim() == 1 and value.numel() == whole and key == MUON_MOMENTUM:
            share.whole[key] = value
        elif value.dim() == 1 and value.numel() in sizes and value.is_floating_point():
            share.tensors[key] = value
        elif value.dim() == 2 and value.shape[1] in sizes and value.is_floating_point():
            share.tensors |= {f"{key}{ROW}{number}": row for number, row in enumerate(value)}  # AdEMAMix's two averages
        else:
            share.odd.append(key)
    return share


def _whole(share: Shard, shapes: dict[str, tuple[int, ...]], name: str, key: str) -> Tensor:
    """A parameter's elements in a tensor that has all parameters of a share as a whole, end to end."""
    offset = 0
    for each in sorted(share.starts, key=lambda each: share.starts[each][0]):
        if each == name:
            break
        offset += numel_of(shapes[each])
    return share.whole[key][offset : offset + numel_of(shapes[name])]


def release_pages(piece: Tensor) -> None:
    """Let go of the pages behind a piece of a mapped file, or all of the file would count as memory in the end.

    MADV_PAGEOUT keeps what is in memory only, so that a piece that is not mapped after all comes to no harm.
    """
    first = -(-piece.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (piece.data_ptr() + piece.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform == "linux" and last > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_PAGEOUT)


def numel_of(shape: Any) -> int:
    return torch.Size(shape).numel()


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
            fix="go on with the adapter, the frozen parameters and the rates of the run that wrote it",
        )
    shapes: dict[str, tuple[int, ...]] = {}
    shares, groups = [], []
    for number, name in zip(chain(*numbers), chain(*names), strict=True):
        value = weights[name]()
        shapes[name] = tuple(value.shape)
        held = {
            key: held.flatten() if torch.is_tensor(held) and held.shape == value.shape and held.dim() > 0 else held
            for key, held in state["state"].get(number, {}).items()
        }
        shares.append(make_shard(value.flatten(), held, {name: (0, value.numel())}, {value.numel()}))
        groups.append([name])
    return ShardedState(None, shapes, groups, [shares], settings=group_settings(state["param_groups"]))
