"""Attention over documents of different lengths in one call of torch's own FlashAttention, on CUDA."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from hftune.models.attention.machine import varlen_parameters
from hftune.models.attention.names import MAX_HEAD_SIZE, VARLEN
from hftune.models.attention.segments import Segments, repeat_kv, segments_attention, segments_mask
from hftune.models.attention.shared_prompts import SharedPrompts


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Segments | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    shared_prompts: SharedPrompts | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention of transformers' `AttentionInterface`: all documents of a batch in one call of the kernel.

    What the kernel cannot do (float32, dropout, caps, sinks, dense masks) goes to `segments_attention`; arguments and
    result are the same.
    """
    runs = attention_mask.cut_at(kwargs.get("cu_seq_lens_q")) if isinstance(attention_mask, Segments) else None
    value = _half(value)
    query, key = query.to(value.dtype), key.to(value.dtype)
    if runs is None or dropout or not _kernel_takes(query, value, kwargs):
        kwargs |= {"dropout": dropout, "scaling": scaling, "shared_prompts": shared_prompts}
        return segments_attention(module, query, key, value, attention_mask, **kwargs)
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, tokens, size = query.shape
    # The kernel's window is (tokens before, tokens after); -1 is no limit. Ours counts the token itself.
    options: dict[str, Any] = {"scale": scaling, "window_size": (-1 if runs.window is None else runs.window - 1, 0)}
    if "enable_gqa" in varlen_parameters():
        options["enable_gqa"] = heads != key.shape[1]
    else:
        key, value = (repeat_kv(states, heads // key.shape[1]) for states in (key, value))
    flat = (states.transpose(1, 2).reshape(batch * tokens, -1, size) for states in (query, key, value))
    flat_query, flat_key, flat_value = flat
    longest = max(runs.lengths)
    key_borders, longest_key = runs.borders, longest
    if shared_prompts is not None:
        # With fewer queries than keys, the kernel lets the last query see the last key.
        shared_prompts.check(runs.lengths)
        flat_key, flat_value = (torch.cat(shared_prompts.with_prompts(states, 0)) for states in (flat_key, flat_value))
        lengths = shared_prompts.key_runs
        key_borders, longest_key = shared_prompts.borders(lengths, query.device), max(lengths)
    out = varlen_attn(flat_query, flat_key, flat_value, runs.borders, key_borders, longest, longest_key, **options)
    assert isinstance(out, torch.Tensor), "no log-sum-exp was asked for"
    return out.view(batch, tokens, heads, size), None


def _half(states: torch.Tensor) -> torch.Tensor:
    """In the dtype of autocast, where that is on."""
    device = states.device.type
    if states.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return states.to(torch.get_autocast_dtype(device))
    return states


def _kernel_takes(query: torch.Tensor, value: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    special = any(kwargs.get(name) is not None for name in ("softcap", "s_aux", "position_bias"))
    size = query.shape[-1]
    return (
        not special
        and query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and size == value.shape[-1]
        and size <= MAX_HEAD_SIZE
        and size % 8 == 0
    )


AttentionInterface.register(VARLEN, varlen_attention)
AttentionMaskInterface.register(VARLEN, segments_mask)
