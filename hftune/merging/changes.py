"""What adapters do to the base's parameters: each kind of update, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from hftune.errors import ManifestError, UserError
from hftune.merging.adapters import AdaptedModule, Adapter
from hftune.merging.skeleton import BaseTensors, StoredSlice, Unsupported
from hftune.merging.tensors import read_tensor
from hftune.weight_files import StoredTensor

_OTHER_MODEL = "give the model that the adapter was trained on"


@lru_cache(maxsize=6)  # the experts of a layer share their matrices
def read_float(stored: StoredTensor) -> Tensor:
    """An adapter's tensor in float32."""
    return read_tensor(stored).float()


@dataclass(frozen=True)
class LowRank:
    """W + scale * B A (LoRA, arXiv:2106.09685), with rows rescaled where there is a magnitude (DoRA, arXiv:2402.09353).

    Args:
        a: (r, in); of E experts (E r, in), as peft's lora.layer.ParamWrapper has them.
        b: (out, r); of E experts (out, r E).
        scale: alpha / r, or alpha / sqrt(r) for rsLoRA (arXiv:2312.03732).
        experts: How many experts the parameter has.
        transposed: The weight is stored as (in, out), or is an embedding.
        magnitude: DoRA's.
    """

    a: StoredTensor
    b: StoredTensor
    scale: float
    experts: int = 1
    transposed: bool = False
    magnitude: StoredTensor | None = None

    def apply(self, weight: Tensor | None, where: StoredSlice) -> Tensor:
        """The given tensor, float32, one of those that store the parameter, with the update in it."""
        assert weight is not None, "a low-rank update needs a weight"
        if self.experts == 1 or where.expert is not None:
            return self._fold(weight, where, where.expert or 0)
        for expert, own in enumerate(weight):
            self._fold(own, where, expert)
        return weight

    def _fold(self, weight: Tensor, where: StoredSlice, expert: int) -> Tensor:
        left, right = read_float(self.b), read_float(self.a)
        if self.experts > 1:
            left = left.reshape(left.shape[0], -1, self.experts)[:, :, expert]
            right = right.reshape(self.experts, -1, right.shape[1])[expert]
        if self.transposed:
            left, right = right.T, left.T
        # Each step rounds to float32, as in peft's W + scale * (left @ right): addmm would round once less.
        weight.add_((left.chunk(where.parts)[where.part] @ right).mul_(self.scale))
        if self.magnitude is not None:
            weight.mul_((read_float(self.magnitude).flatten() / torch.linalg.norm(weight, dim=1))[:, None])
        return weight


@dataclass(frozen=True)
class Replace:
    """The tensor as it was trained in full (`modules_to_save`, biases)."""

    stored: StoredTensor

    def apply(self, weight: Tensor | None, where: StoredSlice) -> Tensor:
        """A new tensor, float32; the base may have none (a score head)."""
        found = read_tensor(self.stored).float()
        return found if where.expert is None else found[where.expert].chunk(where.parts)[where.part]


Update = LowRank | Replace
Updates = dict[str, list[Update]]
"""Parameter name to what is done to it, in order."""


# --- which update belongs to which parameter, and whether it fits ----------------------------------------------------


def updates_of(adapter: Adapter, base: BaseTensors) -> Updates:
    """What one adapter does to each parameter.

    Raises:
        Unsupported: A tensor that hftune does not know how to fold.
        ManifestError: A tensor for a parameter that the base does not have.
    """
    found: Updates = {}
    # First what replaces a tensor: LoRA upon a layer that was also trained in full was computed from the new values.
    for name, stored in adapter.replaced.items():
        before = base.shape(_in_base(name, base))
        if before is not None and stored.shape != before and _grows(stored.shape, before):
            raise Unsupported(f"its {name} has {stored.shape[0]} rows, the base has {before[0]}")
        found.setdefault(name, []).append(Replace(stored))
    for module in adapter.modules:
        parameter, update = _module_update(adapter, module, base)
        found.setdefault(parameter, []).append(update)
    return found


def _grows(after: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """Whether a table has got rows, as embeddings and heads do with their vocabulary."""
    return len(after) == 2 and after[1:] == before[1:] and after[0] > before[0]


def _in_base(name: str, base: BaseTensors) -> str:
    if base.shape(name) is not None:
        return name
    if ".experts." in name:
        # Adapters of transformers 4 name each expert; peft knows which rows of a fused parameter they are.
        raise Unsupported(f"its {name} belongs to no tensor of the base")
    raise ManifestError(
        f"the adapter does not fit the base, which has no {name}", place="--peft_model_path", fix=_OTHER_MODEL
    )


def _module_update(adapter: Adapter, module: AdaptedModule, base: BaseTensors) -> tuple[str, Update]:
    a, b = module.matrices
    if a is None or b is None:
        raise Unsupported(f"{module.name} has only one of its two low-rank matrices")
    parameter = _parameter_of(adapter, module, base)
    shape = base.shape(parameter)
    assert shape is not None
    experts = shape[0] if len(shape) == 3 else 1  # only experts are stored with three dimensions
    # peft looks patterns up by parameter where it wraps parameters, by module elsewhere.
    key = parameter if adapter.config.get("target_parameters") and experts > 1 else module.name
    scale = adapter.scale(key, a.shape[0] // experts)
    transposed, magnitude = _is_transposed(module, base, experts), module.tensors.get("lora_magnitude_vector")
    if transposed and magnitude is not None:
        raise Unsupported(f"DoRA of {module.name}, which is stored as (in, out)")
    return parameter, LowRank(a, b, scale, experts, transposed, magnitude)


def _parameter_of(adapter: Adapter, module: AdaptedModule, base: BaseTensors) -> str:
    """Which parameter a pair of matrices is for: the module's weight, or the one that `target_parameters` names."""
    asked = adapter.config.get("target_parameters") or []
    found = base.module(module.name) if asked else None
    if found is not None:
        own = [f"{module.name}.{name}" for name, _ in found.named_parameters(recurse=False)]
        targeted = [name for name in own if any(name == key or name.endswith(f".{key}") for key in asked)]
        # peft wraps a module once per parameter, in the order of its parameters, so the last one is outermost.
        if module.depth < len(targeted):
            return targeted[len(targeted) - 1 - module.depth]
    return _in_base(module.weight, base)


def _is_transposed(module: AdaptedModule, base: BaseTensors, experts: int) -> bool:
    if module.is_embedding:
        return True
    found = base.module(module.name)
    # transformers marks experts that are stored as (in, out); linear modules that are so have a class of their own.
    return bool(getattr(found, "is_transposed", False)) if experts > 1 else type(found).__name__ == "Conv1D"


def misfits(adapter: Adapter, base: BaseTensors) -> Iterator[UserError]:
    """Tensors whose shape is not that of the parameter they are for. One problem names the first."""
    wrong = [
        f"{name} is {list(before)} in the base and {list(stored.shape)} in the adapter"
        for name, stored in adapter.replaced.items()
        if (before := base.shape(name)) is not None and stored.shape != before
    ]
    wrong += [text for module in adapter.modules for text in _module_misfit(module, base.shape(module.weight))]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        yield ManifestError(
            f"the adapter in {adapter.folder} does not fit the base: {wrong[0]}{more}",
            place="--peft_model_path",
            fix=_OTHER_MODEL,
        )


def _module_misfit(module: AdaptedModule, shape: tuple[int, ...] | None) -> Iterator[str]:
    a, b = module.matrices
    if shape is None or len(shape) != 2 or a is None or b is None:
        return
    # Sorted, since embeddings and Conv1D are the other way round.
    if sorted((a.shape[1], b.shape[0])) != sorted(shape) or a.shape[0] != b.shape[1]:
        yield f"{module.name} is {list(shape)} in the base, its adapter has {list(b.shape)} x {list(a.shape)}"
