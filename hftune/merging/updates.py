"""What adapters do to one tensor, on a block of its rows at a time, in float32.

A tensor of any shape is seen as (rows, columns): a vector as one column, a stack of experts one below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hftune.merging.tensors import scratch


class Update(Protocol):
    """One adapter's change of a tensor, its own matrices in memory."""

    @property
    def whole(self) -> bool:
        """Whether it has to see all rows at once."""
        ...

    def __call__(self, block: Tensor | None, start: int, rows: int) -> Tensor:
        """Rows `start` to `start + rows` after the change; `block` holds them before it and may be overwritten."""
        ...


@dataclass
class Fold:
    """W + scale * left @ right (LoRA, arXiv:2106.09685), or DoRA (arXiv:2402.09353) where there is a magnitude.

    Args:
        left: (rows, r); B for a linear layer, the transpose of A where the weight is stored the other way round.
        right: (r, columns).
        scale: alpha / r, or alpha / sqrt(r) for rsLoRA (arXiv:2312.03732).
        first: The row of the tensor that the first row of `left` belongs to.
        magnitude: DoRA's, of shape (rows,), or (columns,) with `by_column`.
        by_column: DoRA's norms are taken over columns: weights stored as (in, out), and embeddings.
    """

    left: Tensor
    right: Tensor
    scale: float
    first: int = 0
    magnitude: Tensor | None = None
    by_column: bool = False

    @property
    def whole(self) -> bool:
        """Norms over columns need every row."""
        return self.magnitude is not None and self.by_column

    @property
    def additive(self) -> bool:
        """Whether the change is the same whatever the weight is."""
        return self.magnitude is None

    def __call__(self, block: Tensor | None, start: int, rows: int) -> Tensor:
        """See `Update`."""
        assert block is not None, "a low-rank update needs a weight"
        low, high = max(start, self.first), min(start + rows, self.first + self.left.shape[0])
        if low >= high:
            return block
        delta = scratch("delta", high - low, self.right.shape[1], torch.float32)
        torch.mm(self.left[low - self.first : high - self.first], self.right, out=delta)
        # Each step rounds to float32, as in W + scale * (left @ right).
        part = block[low - start : high - start].add_(delta.mul_(self.scale))
        if self.magnitude is not None:
            norm = torch.linalg.norm(part, dim=0 if self.by_column else 1)
            factor = self.magnitude if self.by_column else self.magnitude[low - self.first : high - self.first]
            part.mul_(factor / norm if self.by_column else (factor / norm)[:, None])
        return block


@dataclass
class Replace:
    """The tensor as it was trained in full (`modules_to_save`, biases, grown embeddings)."""

    values: Tensor
    whole: bool = False

    def __call__(self, block: Tensor | None, start: int, rows: int) -> Tensor:
        """See `Update`."""
        return self.values[start : start + rows].clone()


@dataclass
class ReplaceRows:
    """Rows of an embedding that were trained alone (peft's `trainable_token_indices`)."""

    rows: Tensor
    values: Tensor
    whole: bool = False

    def __call__(self, block: Tensor | None, start: int, rows: int) -> Tensor:
        """See `Update`."""
        assert block is not None, "single rows need a weight"
        here = (self.rows >= start) & (self.rows < start + rows)
        block[self.rows[here] - start] = self.values[here]
        return block


Recipe = Callable[[], Update]


@dataclass(frozen=True)
class Level:
    """Adapters side by side on one base, each with its weight and its updates of this tensor in order."""

    parts: tuple[tuple[float, tuple[Recipe, ...]], ...]


@dataclass
class Change:
    """All that happens to one tensor: levels one after another, the way the adapters were trained.

    Side by side, W becomes W + sum_i weight_i * (f_i(W) - W); for LoRA that is W + sum_i weight_i * scale_i * B_i A_i.
    """

    levels: list[Level] = field(default_factory=list)

    def load(self) -> Loaded:
        """Read the adapters' matrices of this tensor."""
        levels = [[(weight, [make() for make in made]) for weight, made in level.parts] for level in self.levels]
        return Loaded(levels)


@dataclass
class Loaded:
    """A `Change` with its matrices in memory."""

    levels: list[list[tuple[float, list[Update]]]]

    @property
    def whole(self) -> bool:
        """Whether some update has to see the whole tensor."""
        return any(update.whole for level in self.levels for _, updates in level for update in updates)

    def __call__(self, block: Tensor | None, start: int, rows: int) -> Tensor:
        """Rows of the merged tensor, float32, from those of the base (None: the base has no such tensor)."""
        for level in self.levels:
            if len(level) == 1 and level[0][0] == 1.0:
                block = _apply(level[0][1], block, start, rows)
            else:
                block = _weighted(level, block, start, rows)
        assert block is not None
        return block


def _apply(updates: Sequence[Update], block: Tensor | None, start: int, rows: int) -> Tensor:
    for update in updates:
        block = update(block, start, rows)
    assert block is not None
    return block


def _weighted(level: list[tuple[float, list[Update]]], block: Tensor | None, start: int, rows: int) -> Tensor:
    assert block is not None, "adapters with weights need a tensor in the base"
    total = block.clone()
    for weight, updates in level:
        if all(isinstance(update, Fold) and update.additive for update in updates):
            # Without the detour over W, whose size would swallow digits of the difference.
            total.add_(_apply(updates, torch.zeros_like(block), start, rows), alpha=weight)
        else:
            total.add_(_apply(updates, block.clone(), start, rows) - block, alpha=weight)
    return total
