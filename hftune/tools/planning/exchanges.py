"""Attention without a mask on tensors without data, over rows that processes may share: nothing is sent.

transformers (5.23) makes a mask of tokens by tokens wherever it is traced, also for attentions that need none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hftune.compat.transformers_patches import attention_registered
from hftune.distributed.sequence_parallel import SequenceGroup, shares
from hftune.models.attention.ulysses import over_whole_rows

COUNTED = "hftune_counted_attention"


class _Exchange(torch.autograd.Function):
    """As that of `sequence_parallel`: keeps nothing, and returns what was received."""

    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, received: int) -> torch.Tensor:
        ctx.sent = flat.numel()
        return flat.contiguous().new_empty(received)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.contiguous().new_empty(ctx.sent), None


@dataclass(frozen=True)
class CountedGroup(SequenceGroup):
    """A group of which one process is there: the first, which has most.

    Args:
        tokens: Of a row.
    """

    tokens: int = 0

    def exchange(self, flat: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        """As the group's, with nobody."""
        out: torch.Tensor = _Exchange.apply(flat, sum(received))
        return out


@contextlib.contextmanager
def rows_shared(size: int, tokens: int) -> Iterator[None]:
    """Have `COUNTED` attend over rows of so many tokens, shared by so many processes, for a while. 1: by nobody."""
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
            return sdpa_attention_forward(module, query, key, value, None, **kwargs)[0]

        if size == 1:
            return sdpa_attention_forward(module, query, key, value, None, **kwargs)
        return over_whole_rows(group, shares(tokens, size), query, key, value, inner), None

    with attention_registered(COUNTED, attend, lambda *args, **kwargs: None):
        yield
