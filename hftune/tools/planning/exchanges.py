"""Attention without a mask on tensors without data, over rows that several processes may share; nothing is sent.

transformers (5.23) makes a mask of tokens by tokens wherever it is traced, also for attentions that need none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hftune.compat.transformers_patches import attention_registered
from hftune.distributed.sequence_parallel import SequenceGroup, shares
from hftune.models.attention.ulysses import over_whole_rows

COUNTED = "hftune_counted_attention"


class _Exchange(torch.autograd.Function):
    """An exchange without a network: saves nothing for backward, like that of `sequence_parallel`."""

    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, received: int) -> torch.Tensor:
        # The gradient travels back the other way, so it has the size of what was sent.
        ctx.sent = flat.numel()
        # `all_to_all_single` needs contiguous tensors: the copy of a strided one counts here as well.
        return flat.contiguous().new_empty(received)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.contiguous().new_empty(ctx.sent), None


@dataclass(frozen=True)
class CountedGroup(SequenceGroup):
    """A group with one process present: rank 0, whose share of an uneven row is the largest.

    Args:
        tokens: Of a row.
    """

    tokens: int = 0

    def exchange(self, flat: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        """A tensor of the received size. Overrides `SequenceGroup.exchange`: there is no other process."""
        out: torch.Tensor = _Exchange.apply(flat, sum(received))
        return out


def _fused(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    """SDPA without a mask, which runs a fused kernel: it keeps no tensor of tokens by tokens, as FlashAttention."""
    size = value.shape[-1]
    # Latent attention has values of another size than keys. Fused kernels of GPUs take them; the one of a CPU, where
    # this is traced, does not, and would fall back to tokens by tokens.
    wide = pad(value, (0, query.shape[-1] - size)) if size < query.shape[-1] else value
    out: torch.Tensor = sdpa_attention_forward(module, query, key, wide, None, **kwargs)[0]
    return out[..., :size]


@contextlib.contextmanager
def rows_shared(size: int, tokens: int) -> Iterator[None]:
    """Register the attention `COUNTED` in the block, over rows of `tokens` that `size` processes share."""
    group = CountedGroup(size, 0, tokens=tokens)

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        def inner(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: range) -> torch.Tensor:
            return _fused(module, query, key, value, **kwargs)

        if size == 1:
            return _fused(module, query, key, value, **kwargs), None
        return over_whole_rows(group, shares(tokens, size), query, key, value, inner), None

    # The second function makes the mask; with the default one a mask would be counted that no run has.
    with attention_registered(COUNTED, attend, lambda *args, **kwargs: None):
        yield
