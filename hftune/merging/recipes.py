"""Which parameters an adapter changes and how: from the tensors that peft saves to updates that can be computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hftune.errors import ManifestError
from hftune.merging.adapters import Adapter, Part
from hftune.merging.skeleton import Piece, Skeleton
from hftune.merging.tensors import read_tensor
from hftune.merging.updates import Fold, Recipe, Replace, ReplaceRows, Update
from hftune.weight_files import StoredTensor

if TYPE_CHECKING:
    from hftune.models.vocabulary.growth import Growth


class Unknown(Exception):
    """Something that peft has to merge; the message says what."""


@dataclass
class Base:
    """The base's tensors by the names they are stored under, and how to find a parameter among them."""

    tensors: dict[str, Any]
    skeleton: Skeleton | None = None
    dropped: set[str] = field(default_factory=set)

    def pieces(self, parameter: str) -> list[Piece]:
        """The stored tensors of a parameter; none for one that is tied, new or unknown.

        Raises:
            Unknown: It is made from stored tensors in a way that hftune does not know.
        """
        if parameter in self.tensors:
            return [Piece(parameter)]
        if self.skeleton is None:
            return []
        if parameter in self.skeleton.strange:
            raise Unknown(f"{parameter} is made from stored tensors by {self.skeleton.strange[parameter]}")
        return self.skeleton.pieces.get(parameter, [])

    def shape(self, parameter: str) -> tuple[int, ...] | None:
        """The shape of a parameter in memory."""
        if parameter in self.tensors:
            return tuple(self.tensors[parameter].shape)
        if self.skeleton is None:
            return None
        found = self.skeleton.model.state_dict().get(parameter)
        return None if found is None else tuple(found.shape)


@lru_cache(maxsize=6)
def read_float(stored: StoredTensor) -> Tensor:
    """An adapter's tensor in float32. The last few are kept: experts share theirs."""
    return read_tensor(stored).float()


@dataclass(frozen=True)
class Spec:
    """What an adapter does to a parameter; `key` is equal for equal changes."""

    key: tuple
    make: Callable[[Piece, tuple[int, ...]], Recipe]
    shape: tuple[int, ...] | None = None
    """Of the parameter afterwards, where this replaces it."""


# --- what one adapter does -------------------------------------------------------------------------------------------


def specs_of(adapter: Adapter, base: Base) -> dict[str, list[Spec]]:
    """Parameter name to the changes of one adapter, in their order.

    Raises:
        Unknown: A tensor that hftune does not know how to fold.
    """
    found: dict[str, list[Spec]] = {}
    for name, stored in adapter.replaced.items():
        parameter = _known_name(name, base)
        found.setdefault(parameter, []).append(_replace(stored))
    for part in adapter.parts:
        for parameter, spec in _part_specs(adapter, part, base):
            found.setdefault(parameter, []).append(spec)
    return found


def _known_name(name: str, base: Base) -> str:
    if base.shape(name) is not None:
        return name
    if ".experts." in name:
        # Adapters of transformers 4 name each expert; peft knows which rows of a fused parameter they are.
        raise Unknown(f"its {name} belongs to no tensor of the base")
    raise ManifestError(
        f"the adapter does not fit the base, which has no {name}",
        place="--peft_model_path",
        fix="give the model that the adapter was trained on",
    )


def _part_specs(adapter: Adapter, part: Part, base: Base) -> Iterator[tuple[str, Spec]]:
    if "trainable_tokens_delta" in part.tensors:
        rows = adapter.token_rows(part.module)
        if rows is not None:
            yield _known_name(f"{part.module}.weight", base), _rows(rows, part)
        else:
            _check_copy(adapter, part)
        return
    a = part.tensors.get("lora_embedding_A") or part.tensors.get("lora_A")
    b = part.tensors.get("lora_embedding_B") or part.tensors.get("lora_B")
    if a is None or b is None:
        raise Unknown(f"{part.module} has only one of its two low-rank matrices")
    parameter = _parameter_of(adapter, part, base)
    shape = base.shape(parameter)
    assert shape is not None
    experts = shape[0] if len(shape) == 3 else 1
    rank = a.shape[0] // experts
    pattern_key = parameter if adapter.config.get("target_parameters") and experts > 1 else part.module
    scale = adapter.scale(pattern_key, rank)
    yield parameter, _low_rank(part, a, b, scale, experts, _transposed(adapter, part, base, experts))
    bias = part.tensors.get("lora_B.bias")
    if bias is not None:
        yield _known_name(f"{part.module}.bias", base), _added_bias(bias, scale)


def _parameter_of(adapter: Adapter, part: Part, base: Base) -> str:
    """Which parameter a pair of matrices is for: the module's weight, or the one that `target_parameters` names.

    peft wraps a module once a parameter, in the order of its parameters, so the last one is outermost.
    """
    weight = f"{part.module}.weight"
    asked = adapter.config.get("target_parameters") or []
    module = base.skeleton.module(part.module) if base.skeleton and asked else None
    if module is not None:
        own = [f"{part.module}.{name}" for name, _ in module.named_parameters(recurse=False)]
        targeted = [name for name in own if any(name == key or name.endswith(f".{key}") for key in asked)]
        if targeted and part.depth < len(targeted):
            return targeted[len(targeted) - 1 - part.depth]
    return _known_name(weight, base)


def _transposed(adapter: Adapter, part: Part, base: Base, experts: int) -> bool:
    if part.embedding:
        return True
    if base.skeleton is None:
        return False
    if experts > 1:
        return bool(getattr(base.skeleton.module(part.module), "is_transposed", False))
    return base.skeleton.is_transposed(part.module)


def _low_rank(part: Part, a: StoredTensor, b: StoredTensor, scale: float, experts: int, transposed: bool) -> Spec:
    magnitude = part.tensors.get("lora_magnitude_vector")

    def factors(expert: int) -> tuple[Tensor, Tensor]:
        """(rows, r) and (r, columns) of one expert; peft's layout is that of its lora.layer.ParamWrapper."""
        left, right = read_float(b), read_float(a)
        if experts > 1:
            left = left.reshape(left.shape[0], -1, experts)[:, :, expert]
            right = right.reshape(experts, -1, right.shape[-1])[expert]
        return (right.T, left.T) if transposed else (left, right)

    def fold(piece: Piece, expert: int, first: int) -> Recipe:
        def make() -> Update:
            left, right = factors(expert)
            rows = left.shape[0] // piece.parts
            left = left[piece.part * rows : (piece.part + 1) * rows].contiguous()
            vector = None if magnitude is None else read_float(magnitude).flatten()
            return Fold(left, right.contiguous(), scale, first, vector, by_column=transposed)

        return make

    def make(piece: Piece, shape: tuple[int, ...]) -> Recipe:
        if experts == 1 or piece.expert is not None:
            return fold(piece, piece.expert or 0, 0)
        rows = prod(shape[:-1]) // experts
        return lambda: Several([fold(piece, expert, expert * rows)() for expert in range(experts)])

    return Spec(("low rank", a, b, scale), make)


@dataclass
class Several:
    """Updates one after another as one: the experts of a stacked tensor."""

    updates: list[Update]

    @property
    def whole(self) -> bool:
        """See `Update`."""
        return any(update.whole for update in self.updates)

    def __call__(self, block: Tensor | None, start: int, rows: int) -> Tensor:
        """See `Update`."""
        for update in self.updates:
            block = update(block, start, rows)
        assert block is not None
        return block


def _added_bias(bias: StoredTensor, scale: float) -> Spec:
    def make() -> Update:
        return Fold(read_float(bias)[:, None], torch.ones(1, 1), scale)

    return Spec(("bias", bias, scale), lambda piece, shape: make)


def _replace(stored: StoredTensor) -> Spec:
    def make(piece: Piece, shape: tuple[int, ...]) -> Recipe:
        def values() -> Update:
            found = read_tensor(stored).float()
            if piece.expert is not None:
                found = found[piece.expert].chunk(piece.parts, dim=0)[piece.part]
            return Replace(found.reshape(-1, found.shape[-1]) if found.ndim > 1 else found.reshape(-1, 1))

        return values

    return Spec(("replace", stored), make, stored.shape)


def grown(growth: Growth, shape: tuple[int, ...]) -> Spec:
    """The rows that training gave a weight with a row a token before it began (`hftune.models.vocabulary.growth`)."""
    return Spec(("grow", repr(growth)), lambda piece, before: lambda: Grow(growth), (growth.rows, *shape[1:]))


@dataclass
class Grow:
    """A weight with the rows of a grown vocabulary."""

    growth: Growth
    whole: bool = True

    def __call__(self, block: Tensor | None, start: int, rows: int) -> Tensor:
        """See `Update`."""
        assert block is not None, "only what is there can grow"
        from hftune.models.vocabulary.resized_rows import resized_rows

        return resized_rows(block, self.growth)


def _check_copy(adapter: Adapter, part: Part) -> None:
    """Under ZeRO-3 peft saves the rows of a tied head beside those of the embedding, which they are."""
    own = read_float(part.tensors["trainable_tokens_delta"])
    others = [other.tensors.get("trainable_tokens_delta") for other in adapter.parts if other is not part]
    if not any(other is not None and torch.equal(read_float(other), own) for other in others):
        raise Unknown(f"its {part.module} has rows of its own that its config does not name")


def _rows(indices: list[int], part: Part) -> Spec:
    stored = part.tensors["trainable_tokens_delta"]
    rows = tuple(indices)

    def make() -> Update:
        return ReplaceRows(torch.tensor(rows), read_float(stored))

    return Spec(("rows", rows, stored), lambda piece, shape: make)
