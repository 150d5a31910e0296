"""Weights and optimizer state of any checkpoint by the name of the parameter, whoever wrote it and in how many pieces.

ZeRO writes a file a rank, with flat tensors in which each rank's share of the parameters lies end to end; another
number of processes, or another stage, cuts them elsewhere. Files are mapped, not read: what is asked for is loaded.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hftune.errors import ManifestError

WEIGHTS = "fp32"
"""The key under which the weights themselves are read, in the precision in which the optimizer keeps them."""
ROW = "/"
"""Between the name and the number of a state that has several rows of elements."""
MODEL_FILE = "mp_rank_00_model_states.pt"
UNIVERSAL = "zero"
"""The folder in which DeepSpeed's `ds_to_universal` has a folder a parameter."""
_MADV_PAGEOUT = 21  # Linux 5.4
_RANK = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")


@dataclass
class Flat:
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
class Pieces:
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
    ranks: list[list[Flat]]
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
                _forget(piece)
            seen += held
        assert result is not None and seen == total, f"{name}: {seen} of {total} elements in the checkpoint"
        return result

    def cannot_be_cut(self) -> list[str]:
        """States that do not belong to single weights: of blocks in 8-bit optimizers, of rows and columns in others."""
        return sorted({key for rank in self.ranks for share in rank for key in share.odd})

    def _shares(self, name: str) -> list[Flat]:
        group = self._group_of[name]
        return [rank[group] for rank in self.ranks if name in rank[group].starts]


def engine_folder(checkpoint: str | Path) -> Path | None:
    """The folder of a checkpoint in which DeepSpeed's engine wrote its state; None where it did not."""
    folder = Path(checkpoint)
    for tag in ("latest", "latest_universal"):
        if (folder / tag).is_file():
            return folder / (folder / tag).read_text(encoding="utf-8").strip()
    return next(iter(sorted(folder.glob("global_step*"))), None)


def open_engine(folder: Path) -> Pieces:
    """What DeepSpeed's engine wrote in `global_stepN`, under any ZeRO stage above 0, or `ds_to_universal` made of it.

    Raises:
        ManifestError: There is no such state, or it is of a kind that cannot be taken apart.
    """
    if (folder / UNIVERSAL).is_dir():
        return _universal(folder)
    files = {int(match[1]): file for file in folder.glob("*_optim_states.pt") if (match := _RANK.search(file.name))}
    if not files:
        raise ManifestError(f"no ZeRO state is in {folder}", place=str(folder), fix="give a checkpoint of ZeRO 1 to 3")
    if sorted(files) != list(range(len(files))) or any("_mp_rank_00_" not in file.name for file in files.values()):
        raise ManifestError(
            f"{folder} was written by tensor or expert parallel processes, or some of its files are missing",
            place=str(folder),
            fix="go on with the processes that wrote it",
        )
    states = [load(files[rank])["optimizer_state_dict"] for rank in range(len(files))]
    models = sorted(folder.glob("*_model_states.pt"), key=lambda file: [int(n) for n in re.findall(r"\d+", file.name)])
    about = load(folder / MODEL_FILE if (folder / MODEL_FILE).is_file() else models[0])
    make = _stage_3 if "fp32_flat_groups" in states[0] else _stage_1_or_2
    return make(states, about, models)


def load(file: Path) -> Any:
    """A file of DeepSpeed's, mapped into memory. It holds pickled classes, as all of its checkpoints do."""
    return torch.load(file, map_location="cpu", mmap=True, weights_only=False)


def _stage_1_or_2(states: list[dict[str, Any]], about: dict[str, Any], models: list[Path]) -> Pieces:
    shapes = _shapes(about)
    ranks = []
    for state in states:
        shares = []
        base = state["base_optimizer_state"]
        for number, addresses in enumerate(state["param_slice_mappings"]):
            starts = {name: (address.start, address.numel) for name, address in addresses.items()}
            weights = state["single_partition_of_fp32_groups"][number].flatten()
            padding = state.get("group_paddings", [0] * (number + 1))[number]
            held = base["state"].get(base["param_groups"][number]["params"][0], {})
            sizes = {weights.numel(), weights.numel() + padding}
            shares.append(_share(weights, held, starts, sizes, whole=sum(_numel(shapes[name]) for name in starts)))
        ranks.append(shares)
    apart = {*shapes, *(about.get("buffer_names") or ()), *(about.get("shared_params") or ())}
    kept = {**(about.get("module") or {}), **(about.get("frozen_param_fragments") or {})}
    frozen = {name: partial(_same, value) for name, value in kept.items() if name not in apart}
    stage = int(states[0].get("zero_stage", 1))
    return _described(Pieces(stage, shapes, _groups(about), ranks, frozen=frozen), about, states)


def _stage_3(states: list[dict[str, Any]], about: dict[str, Any], models: list[Path]) -> Pieces:
    world, ranks = len(states), []
    for rank, state in enumerate(states):
        shares = []
        order = [number for group in state["optimizer_state_dict"]["param_groups"] for number in group["params"]]
        for number, part in enumerate(about["param_shapes"]):
            starts, offset = {}, 0
            for name, shape in part.items():
                size = -(-_numel(shape) // world)
                starts[name] = (offset, max(0, min(size, _numel(shape) - rank * size)))
                offset += size
            weights = state["fp32_flat_groups"][number].flatten()
            held = state["optimizer_state_dict"]["state"].get(order[number], {})
            shares.append(_share(weights, held, starts, {weights.numel()}))
        ranks.append(shares)
    frozen = {}
    if about.get("frozen_param_shapes"):
        parts = [load(file).get("frozen_param_fragments") or {} for file in models]
        frozen = {
            name: partial(_joined, [part[name] for part in parts], tuple(shape))
            for name, shape in about["frozen_param_shapes"].items()
        }
    return _described(Pieces(3, _shapes(about), _groups(about), ranks, frozen=frozen), about, states)


def _described(pieces: Pieces, about: dict[str, Any], states: list[dict[str, Any]]) -> Pieces:
    pieces.counters = {key: about[key] for key in ("global_steps", "global_samples", "skipped_steps") if key in about}
    names = set(about.get("buffer_names") or ())
    pieces.buffers = {name: value for name, value in (about.get("module") or {}).items() if name in names}
    pieces.shared = dict(about.get("shared_params") or {})
    base = states[0].get("base_optimizer_state") or states[0].get("optimizer_state_dict") or states[0]
    pieces.settings = _settings(base.get("param_groups", ()))
    return pieces


def _settings(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def _share(
    weights: Tensor, state: dict[str, Any], starts: dict[str, tuple[int, int]], sizes: set[int], whole: int = -1
) -> Flat:
    """Sort the states of a flat tensor by whether they can be cut as it is."""
    share = Flat({WEIGHTS: weights}, starts)
    # bitsandbytes wraps up what must not be cast to the dtype of the weights.
    wrapped = [value for value in state.values() if isinstance(value, dict)]
    plain = {key: value for key, value in state.items() if not isinstance(value, dict)}
    for key, value in [*plain.items(), *(item for values in wrapped for item in values.items())]:
        if isinstance(value, int | float | None) or (torch.is_tensor(value) and value.dim() == 0):
            share.scalars[key] = value
        elif not torch.is_tensor(value):
            share.odd.append(key)
        elif value.dim() == 1 and value.numel() in sizes and value.is_floating_point():
            share.tensors[key] = value
        elif value.dim() == 2 and value.shape[1] in sizes and value.is_floating_point():
            share.tensors |= {f"{key}{ROW}{number}": row for number, row in enumerate(value)}  # AdEMAMix's two averages
        elif value.dim() == 1 and value.numel() == whole:
            share.whole[key] = value
        else:
            share.odd.append(key)
    return share


def _whole(share: Flat, shapes: dict[str, tuple[int, ...]], name: str, key: str) -> Tensor:
    """A parameter's elements in a tensor that has all parameters of a share as a whole, end to end."""
    offset = 0
    for each in sorted(share.starts, key=lambda each: share.starts[each][0]):
        if each == name:
            break
        offset += _numel(shapes[each])
    return share.whole[key][offset : offset + _numel(shapes[name])]


def _universal(folder: Path) -> Pieces:
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
            count = _numel(shapes[place.name])
            shares.append(Flat(tensors, {place.name: (0, count)}, scalars=scalars or _steps(common)))
        else:
            frozen[place.name] = partial(_same, tensors[WEIGHTS])
    groups = [[name for name in share.starts] for share in shares]
    return _described(Pieces(None, shapes, groups, [shares], frozen=frozen), about, [common])


def _steps(common: dict[str, Any]) -> dict[str, Any]:
    """The number of steps, which a universal checkpoint made of stage 3 has in one place for all."""
    states = common.get("optimizer_state_dict", {}).get("state", {})
    return {"step": states[0]["step"]} if states and "step" in states[0] else {}


def _shapes(about: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for part in about["param_shapes"] for name, shape in part.items()}


def _forget(piece: Tensor) -> None:
    """Let go of the pages behind a piece of a mapped file, or all of the file would count as memory in the end.

    MADV_PAGEOUT keeps what is in memory only, so that a piece that is not mapped after all comes to no harm.
    """
    first = -(-piece.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (piece.data_ptr() + piece.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform == "linux" and last > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_PAGEOUT)


def _same(value: Tensor) -> Tensor:
    return value


def _joined(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """A parameter from the parts that ZeRO-3's ranks hold, the last of which may be padded."""
    return torch.cat([part.flatten() for part in parts])[: _numel(shape)].reshape(shape)


def _groups(about: dict[str, Any]) -> list[list[str]]:
    return [list(part) for part in about["param_shapes"]]


def _numel(shape: Any) -> int:
    return torch.Size(shape).numel()


def from_optimizer(state: dict[str, Any], names: list[list[str]], weights: dict[str, Callable[[], Tensor]]) -> Pieces:
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
        shares.append(_share(value.flatten(), held, {name: (0, value.numel())}, {value.numel()}))
        groups.append([name])
    return Pieces(None, shapes, groups, [shares], settings=_settings(state["param_groups"]))
