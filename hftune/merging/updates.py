"""What adapters do to a tensor: each kind of update, applied to a block of its rows at a time, in float32.

A tensor of any shape is seen as (rows, columns): a vector as one column, a stack of experts one below the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from hftune.merging.skeleton import StoredSlice
from hftune.merging.tensors import read_tensor, scratch
from hftune.models.vocabulary.growth import Growth
from hftune.models.vocabulary.resized_rows import resized_rows
from hftune.weight_files import StoredTensor

Apply = Callable[[Tensor | None, int, int], Tensor]
"""(block, start, rows) to the rows `start` to `start + rows` afterwards; `block` holds them before and may be
overwritten. It is None where the base has no such tensor."""


@dataclass(frozen=True)
class Update:
    """One adapter's change of a parameter.

    Args:
        key: Its kind and what it is made of; equal, contents of tensors included, for updates that do the same.
        load: Reads the adapter's tensors for one of the tensors that store the parameter, given its shape.
        shape: The parameter's shape afterwards; None: as before.
        whole: It has to see all rows at once.
        additive: It adds the same, whatever the weight is.
    """

    key: tuple[Any, ...]
    load: Callable[[StoredSlice, tuple[int, ...]], Apply]
    shape: tuple[int, ...] | None = None
    whole: bool = False
    additive: bool = False


def is_same(first: Any, second: Any) -> bool:
    """Whether updates, or lists of them, do the same."""
    if isinstance(first, Update) and isinstance(second, Update):
        return is_same(first.key, second.key)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, StoredTensor) and isinstance(second, StoredTensor):
        # peft saves some tensors twice: an adapter of tied parameters has one under each name.
        alike = (first.dtype, first.shape) == (second.dtype, second.shape)
        return first == second or (alike and torch.equal(read_tensor(first), read_tensor(second)))
    return bool(first == second)


@lru_cache(maxsize=6)  # the experts of a layer share their matrices
def read_float(stored: StoredTensor) -> Tensor:
    """An adapter's tensor in float32."""
    return read_tensor(stored).float()


# --- the kinds -------------------------------------------------------------------------------------------------------


def low_rank(
    a: StoredTensor,
    b: StoredTensor,
    scale: float,
    *,
    experts: int = 1,
    transposed: bool = False,
    magnitude: StoredTensor | None = None,
) -> Update:
    """W + scale * B A (LoRA, arXiv:2106.09685), with rows rescaled where there is a magnitude (DoRA, arXiv:2402.09353).

    Args:
        a: (r, in); of E experts (E r, in), as peft's lora.layer.ParamWrapper has them.
        b: (out, r); of E experts (out, r E).
        scale: alpha / r, or alpha / sqrt(r) for rsLoRA (arXiv:2312.03732).
        experts: How many experts the parameter has.
        transposed: The weight is stored as (in, out), or is an embedding.
        magnitude: DoRA's.
    """

    def fold(where: StoredSlice, expert: int, first: int) -> Fold:
        left, right = read_float(b), read_float(a)
        if experts > 1:
            left = left.reshape(left.shape[0], -1, experts)[:, :, expert]
            right = right.reshape(experts, -1, right.shape[1])[expert]
        if transposed:
            left, right = right.T, left.T
        rows = left.shape[0] // where.parts
        left = left[where.part * rows : (where.part + 1) * rows].contiguous()
        norms = None if magnitude is None else read_float(magnitude).flatten()
        return Fold(left, right.contiguous(), scale, first, norms, by_column=transposed)

    def load(where: StoredSlice, shape: tuple[int, ...]) -> Apply:
        if experts == 1 or where.expert is not None:
            return fold(where, where.expert or 0, 0)
        rows = prod(shape[:-1]) // experts
        return partial(apply_all, [fold(where, expert, expert * rows) for expert in range(experts)])

    key = ("low rank", a, b, scale, experts, transposed, magnitude)
    # DoRA's norms run over columns where the weight is stored transposed.
    return Update(key, load, whole=magnitude is not None and transposed, additive=magnitude is None)


@dataclass
class Fold:
    """`low_rank` with its matrices in memory.

    Args:
        left: (rows, r).
        right: (r, columns).
        scale: See `low_rank`.
        first: The row of the tensor that the first row of `left` belongs to.
        magnitude: Of shape (rows,), or (columns,) with `by_column`.
        by_column: Norms are taken over columns.
    """

    left: Tensor
    right: Tensor
    scale: float
    first: int = 0
    magnitude: Tensor | None = None
    by_column: bool = False

    def __call__(self, block: Tensor | None, start: int, rows: int) -> Tensor:
        """See `Apply`."""
        assert block is not None, "a low-rank update needs a weight"
        low, high = max(start, self.first), min(start + rows, self.first + self.left.shape[0])
        if low >= high:  # rows of other experts
            return block
        delta = scratch("delta", high - low, self.right.shape[1], torch.float32)
        torch.mm(self.left[low - self.first : high - self.first], self.right, out=delta)
        # Each step rounds to float32, as in peft's W + scale * (left @ right): addmm would round once less.
        part = block[low - start : high - start].add_(delta.mul_(self.scale))
        if self.magnitude is not None:
            norm = torch.linalg.norm(part, dim=0 if self.by_column else 1)
            factor = self.magnitude if self.by_column else self.magnitude[low - self.first : high - self.first]
            part.mul_(factor / norm if self.by_column else (factor / norm)[:, None])
        return block


def add_bias(bias: StoredTensor, scale: float) -> Update:
    """The bias of B (peft's `lora_bias`), added to that of the layer."""
    return Update(
        ("bias", bias, scale),
        lambda where, shape: Fold(read_float(bias)[:, None], torch.ones(1, 1), scale),
        additive=True,
    )


def replace(stored: StoredTensor) -> Update:
    """The tensor as it was trained in full (`modules_to_save`, biases, grown embeddings)."""

    def load(where: StoredSlice, shape: tuple[int, ...]) -> Apply:
        found = read_tensor(stored).float()
        if where.expert is not None:
            found = found[where.expert].chunk(where.parts)[where.part]
        values = found.reshape(-1, found.shape[-1]) if found.ndim > 1 else found.reshape(-1, 1)
        return lambda block, start, rows: values[start : start + rows].clone()  # later updates overwrite it

    return Update(("replace", stored), load, shape=stored.shape)


ROWS = "rows"
"""First in the key of `replace_rows`."""


def replace_rows(rows: list[int], stored: StoredTensor) -> Update:
    """Rows of an embedding that were trained alone (peft's `trainable_token_indices`)."""

    def load(where: StoredSlice, shape: tuple[int, ...]) -> Apply:
        numbers, values = torch.tensor(rows), read_float(stored)

        def apply(block: Tensor | None, start: int, count: int) -> Tensor:
            assert block is not None, "single rows need a weight"
            here = (numbers >= start) & (numbers < start + count)
            block[numbers[here] - start] = values[here]
            return block

        return apply

    return Update((ROWS, rows, stored), load)


def grow_rows(growth: Growth, shape: tuple[int, ...]) -> Update:
    """The rows that training gave a weight with a row per token, of this shape in the base, before it began."""

    def load(where: StoredSlice, after: tuple[int, ...]) -> Apply:
        def apply(block: Tensor | None, start: int, count: int) -> Tensor:
            assert block is not None, "only what is there can grow"
            return resized_rows(block, growth)

        return apply

    return Update(("grow", growth), load, shape=(growth.rows, *shape[1:]), whole=True)  # a new row is a mean of others


# --- all that happens to a tensor ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """All updates of one stored tensor.

    Args:
        levels: Adapters one after another, as they were trained. Those of a level are side by side, each with its
            weight: W becomes W + sum_i weight_i * (f_i(W) - W); for LoRA that is W + sum_i weight_i * scale_i B_i A_i.
        where: Which slice of the parameter it stores.
        shape: The tensor's shape afterwards.
    """

    levels: list[list[tuple[float, list[Update]]]]
    where: StoredSlice
    shape: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether some update has to see all rows at once."""
        return any(update.whole for level in self.levels for _, updates in level for update in updates)

    def load(self) -> Apply:
        """Read the adapters' tensors; the result gives rows of the merged tensor, float32."""
        return partial(apply_all, [self._load_level(level) for level in self.levels])

    def _load_level(self, level: list[tuple[float, list[Update]]]) -> Apply:
        loaded = [[update.load(self.where, self.shape) for update in updates] for _, updates in level]
        if len(level) == 1 and level[0][0] == 1.0:
            return partial(apply_all, loaded[0])

        def blend(block: Tensor | None, start: int, rows: int) -> Tensor:
            assert block is not None, "adapters with weights need a tensor in the base"
            total = block.clone()
            for (weight, updates), steps in zip(level, loaded, strict=True):
                if all(update.additive for update in updates):
                    # Not by way of W, whose size would swallow digits of the difference.
                    difference = apply_all(steps, torch.zeros_like(block), start, rows)
                else:
                    difference = apply_all(steps, block.clone(), start, rows) - block
                total.add_(difference, alpha=weight)
            return total

        return blend


def apply_all(steps: list[Apply], block: Tensor | None, start: int, rows: int) -> Tensor:
    """One after another."""
    for step in steps:
        block = step(block, start, rows)
    assert block is not None
    return block
