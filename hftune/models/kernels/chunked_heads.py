"""A head's products a chunk of hidden states at a time: what all losses over a vocabulary share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from hftune.compat.installing import replace_method
from hftune.distributed import ranks, zero

CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**28}
"""Float32 logits of a chunk: small enough for the caches of a CPU, large enough to keep a GPU busy."""

KEPT_BYTES = 2**28
"""Float32 logits that a trained head may keep for the backward pass instead of computing them again."""

Columns = tuple[torch.Tensor, ...]
"""log_probs and, as far as asked for, entropy, is_top1, mean_logits, log_sum_sq; (tokens,) each."""


def is_plain(head: torch.nn.Module) -> bool:
    """Whether it is a projection and nothing else."""
    return type(head) is torch.nn.Linear


def is_trained(head: torch.nn.Module) -> bool:
    """Whether a weight of the head gets gradients."""
    return any(parameter.requires_grad for parameter in head.parameters())


def teach_head(head: Any) -> None:
    """Have a plain head apply a function (the first of `answer_options`) in its forward pass, as ZeRO-3 needs it."""
    if getattr(head, "scores_answers", False):
        return
    original: Callable[[torch.Tensor], torch.Tensor] = head.forward

    def forward(
        self: torch.nn.Linear,
        hidden: torch.Tensor,
        answer_options: tuple[Any, ...] = (),
    ) -> Any:
        if not answer_options:
            return original(hidden)
        function, *options = answer_options
        return function.apply(hidden, self.weight, self.bias, *options)

    replace_method(head, "forward", forward)
    head.scores_answers = True


def chunk_slices(hidden: torch.Tensor, vocabulary: int) -> list[slice]:
    """Chunks of hidden states (tokens, size): as few as may be, of nearly the same length."""
    most = max(1, CHUNK_BYTES.get(hidden.device.type, 2**28) // (4 * vocabulary))
    chunks = -(-len(hidden) // most)
    length = -(-len(hidden) // chunks) if chunks else 1
    return [slice(start, start + length) for start in range(0, len(hidden), length)]


def product_dtype(weight: torch.Tensor) -> torch.dtype:
    """The dtype in which the projection is computed: that of autocast, where it is on."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def in_float32(device: torch.device) -> torch.autocast:
    """Inside, products of float32 are computed as such, autocast or not."""
    return torch.autocast(device.type, enabled=False)


def new_gradients(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients to be filled of hidden states, weight and bias, where each is wanted: the last two zeros, to add to."""
    # Sums over several chunks want more than 16 bits.
    exact = torch.float32 if len(chunk_slices(hidden, weight.shape[0])) > 1 else weight.dtype
    return (
        torch.empty_like(hidden) if wanted[0] else None,
        torch.zeros_like(weight, dtype=exact) if wanted[1] else None,
        torch.zeros_like(bias, dtype=torch.float32) if bias is not None and wanted[2] else None,
    )


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, alpha: float = 1.0) -> None:
    """Add alpha times the transposed `left` (tokens, rows) times `right` (tokens, columns), in place."""
    if total.dtype == right.dtype:
        total.addmm_(left.T, right, alpha=alpha)
    else:
        total.add_(left.T @ right, alpha=alpha)


def through_module(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    score: Callable[[torch.Tensor, slice | None], Columns],
    *others: torch.nn.Module,
) -> tuple[list[Columns], torch.Tensor | float]:
    """Columns of each chunk of hidden states (tokens, size), and 0 with a gradient for chunks that only others have.

    Args:
        score: Calls the head with a chunk, which is of the given tokens, or is made up (None).
        others: Heads that `score` gathers as well.
    """
    # A head that peft has wrapped may not say its size: 65536 rows are assumed, which only decides how long chunks are.
    vocabulary = int(getattr(head, "out_features", 0) or 2**16)
    # Without a token of its own a process calls the head all the same: reducing its gradient is collective.
    most = max(len(hidden), 1)
    if any(map(zero.is_any_partitioned, (head, *others))):
        # Each call gathers weights, and each backward pass of one: all processes need as many.
        most = ranks.max_over_ranks(most)
    # Logits of a trained head are kept where they are small, since computing them twice is half of the work again.
    again = torch.is_grad_enabled() and 4 * most * vocabulary > KEPT_BYTES
    chunks = -(-most // max(1, CHUNK_BYTES.get(hidden.device.type, 2**28) // (4 * vocabulary)))
    found: list[Columns] = []
    nothing: torch.Tensor | float = 0.0
    start = 0
    for part in hidden.tensor_split(chunks):
        rows = slice(start, start := start + len(part)) if len(part) else None
        if rows is None:
            # With a gradient: without one ZeRO-3 has no moment in the backward pass to give the weights away again.
            part = hidden.new_zeros(1, hidden.shape[1]).requires_grad_(hidden.requires_grad)
        columns = checkpoint(score, part, rows, use_reentrant=False) if again else score(part, rows)
        if rows is not None:
            found.append(columns)
        else:
            # Times 0, so that the backward pass of this process has as many calls of the head as that of the others.
            nothing = nothing + 0.0 * columns[0].sum()
    return found, nothing
