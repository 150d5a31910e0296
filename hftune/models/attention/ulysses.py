"""Attention of a model whose processes hold slices of a row: over the whole row, for a share of the heads.

The documents of the row come with the batch, as the borders that FlashAttention takes (`cu_seq_lens_q`), of the whole
row and not of a slice. What the model makes of its slice alone (its mask) is only asked for the width of a window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from hftune.distributed import sequence_parallel
from hftune.distributed.sequence_parallel import Heads, SequenceGroup, shares
from hftune.errors import ArgumentError
from hftune.models.attention.machine import has_varlen
from hftune.models.attention.segments import (
    MaskFunction,
    Segments,
    sees_ahead,
    segments_attention,
    varlen_attention,
)

ULYSSES = "hftune_ulysses"
"""For slices of a row, shared by the processes of a sequence-parallel group."""


@dataclass(frozen=True)
class Window:
    """In place of a mask: how many tokens a token sees, itself included; None: all before it in its document."""

    width: int | None = None


def ulysses_mask(
    batch_size: int,
    q_length: int,
    *_: Any,
    mask_function: MaskFunction,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Window:
    """A mask of transformers' `AttentionMaskInterface` for a slice; arguments as of `segments_mask`.

    Raises:
        ArgumentError: Tokens see what comes after them.
    """
    assert attention_mask is None, "slices are of rows without padding"
    if sees_ahead(mask_function, 1, q_length, torch.device(device)):
        raise ArgumentError(
            "this model's tokens see those after them", place="--sequence_parallel_size", fix="leave it out"
        )
    return Window(local_size)


def ulysses_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Window,
    s_aux: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention of transformers' `AttentionInterface`; all processes of the group must call.

    Args:
        query: (1, heads, tokens of this process, head size); key and value may have fewer heads.
        attention_mask: From `ulysses_mask`.
        s_aux: (heads,), scores of attention sinks.
        cu_seq_lens_q: IntTensor (documents + 1,): where the documents of the whole row begin, and its end.

    Returns:
        (1, tokens of this process, heads, head size), and no weights.
    """
    group = sequence_parallel.active_group()
    assert cu_seq_lens_q is not None and isinstance(attention_mask, Window), "a batch of a sequence-parallel trainer"
    assert kwargs.get("shared_prompts") is None, "refused in preflight"
    documents = _documents(cu_seq_lens_q)
    tokens = shares(sum(documents.lengths), group.size)
    assert query.shape[2] == tokens[group.rank], "a slice of the row whose documents were given"
    # Norms of queries and keys are kept in float32 on a quantised base (peft), and give float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    attention = varlen_attention if has_varlen() else segments_attention
    whole = dataclasses.replace(documents, window=attention_mask.width)

    def inner(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: range) -> torch.Tensor:
        sinks = None if s_aux is None else s_aux[heads.start : heads.stop]
        return attention(module, query, key, value, whole, s_aux=sinks, **kwargs)[0]

    return over_whole_rows(group, tokens, query, key, value, inner), None


def over_whole_rows(
    group: SequenceGroup,
    tokens: tuple[int, ...],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    inner: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Exchange heads for tokens, attend, and back.

    Args:
        tokens: Of the slice of each process.
        query: (1, heads, tokens of this process, head size); key and value may have fewer heads.
        inner: From query, key and value of whole rows and the heads of the queries to (1, tokens, heads, size).

    Returns:
        (1, tokens of this process, heads, head size).
    """
    heads = Heads(query.shape[1], key.shape[1], group.size)
    whole_query = group.to_heads(query, heads.query_shares, tokens)
    whole_key, whole_value = (_keys_of(part, heads, group, tokens) for part in (key, value))
    out = inner(whole_query, whole_key, whole_value, heads.query_range(group.rank))
    return group.to_tokens(out, heads.query_shares, tokens)


def _keys_of(states: torch.Tensor, heads: Heads, group: SequenceGroup, tokens: tuple[int, ...]) -> torch.Tensor:
    """(1, heads, tokens of this process, size) to the heads of all tokens that this process's queries need."""
    if list(heads.keys_sent) != list(range(heads.keys)):
        states = states[:, heads.keys_sent]
    whole = group.to_heads(states, heads.key_shares, tokens)
    # Where keys have fewer heads than there are processes, several share one, and each picks the ones of its queries.
    places = heads.key_of_query(group.rank)
    return whole if places is None else whole[:, places]


# The borders of the batch that is computed now. All layers ask for them with the same tensor, and reading lengths from
# a GPU waits for everything that was queued there.
_last: tuple[torch.Tensor, Segments] | None = None


def _documents(borders: torch.Tensor) -> Segments:
    """The borders with their lengths."""
    global _last
    if _last is None or _last[0] is not borders:
        _last = borders, Segments(borders, tuple(borders.diff().tolist()))
    return _last[1]


AttentionInterface.register(ULYSSES, ulysses_attention)
AttentionMaskInterface.register(ULYSSES, ulysses_mask)
