"""Attention and experts on tensors without data, which allocate what the real ones do and compute nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

COUNTED = "hftune_counted_attention"


def _fused(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    """SDPA without a mask, which runs a fused kernel: it keeps no tensor of tokens by tokens, as FlashAttention."""
    size = value.shape[-1]
    # Latent attention has values of another size than keys. Fused kernels of GPUs take them; the one of a CPU, where
    # this is traced, does not, and would fall back to tokens by tokens.
    wide = pad(value, (0, query.shape[-1] - size)) if size < query.shape[-1] else value
    out: torch.Tensor = AttentionInterface()["sdpa"](module, query, key, wide, None, **kwargs)[0]
    return out[..., :size]


def count_attention(*, shared: bool) -> None:
    """Register the attention `COUNTED`.

    Args:
        shared: Processes share rows: tokens are exchanged for heads before it, and back behind it.
    """

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        # All tokens for some heads take what some tokens for all heads do: an exchange is a copy.
        sent = [one.clone() for one in (query, key, value)] if shared else [query, key, value]
        out = _fused(module, *sent, **kwargs)
        return out.clone() if shared else out, None

    # The second function makes the mask; with the default one a mask would be counted that no run has.
    AttentionInterface.register(COUNTED, attend)
    AttentionMaskInterface.register(COUNTED, lambda *args, **kwargs: None)


COUNTED_EXPERTS = "hftune_counted"


class _GroupedMatmul(torch.autograd.Function):
    """Save for backward what `grouped_mm` saves, its input and the weights of all experts; computes nothing.

    transformers' own operator does not do: the backward pass of 5.17 looks at values.
    """

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor, width: int) -> torch.Tensor:
        ctx.save_for_backward(tokens, weight)
        return tokens.new_empty((tokens.shape[0], width))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        wanted = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        # The weights' gradient has the shape of all experts, however few of them got a token.
        tokens, weight = (torch.empty_like(one) if needed else None for one, needed in wanted)
        return tokens, weight, None


def counted_experts(
    experts: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Allocate the tensors of transformers' `grouped_mm_experts_forward` (5.23), in its order.

    Args:
        experts: Module of all experts of a layer.
        hidden_states: (tokens, hidden size).
        top_k_index: (tokens, experts a token), and their weights alike.
    """
    tokens, chosen = top_k_index.shape
    # In the place of a sort by expert, which looks at values: an index of the same size and dtype.
    order = torch.empty_like(top_k_index.reshape(-1))
    selected = hidden_states[order // chosen]
    shares = top_k_weights.reshape(-1)[order]
    weight = experts.gate_up_proj if experts.has_gate else experts.up_proj
    width = weight.shape[-1] if experts.is_transposed else weight.shape[-2]
    # `grouped_mm` knows no autocast: transformers casts its input to the weights' dtype, and so does this.
    out = _GroupedMatmul.apply(selected.to(weight.dtype), weight, width)
    out = experts._apply_gate(out) if experts.has_gate else experts.act_fn(out)
    weight = experts.down_proj
    out = _GroupedMatmul.apply(out.to(weight.dtype), weight, hidden_states.shape[-1])
    weighted = (out * shares.unsqueeze(-1))[order]
    return weighted.view(tokens, chosen, -1).sum(dim=1).to(hidden_states.dtype)


@contextlib.contextmanager
def experts_counted(model: nn.Module) -> Iterator[None]:
    """Compute the model's experts by `counted_experts` in the block."""
    # By id: modules share configs. All names are read before the first is changed, since transformers' setter changes
    # those of sub-configs as well.
    configs: dict[int, Any] = {id(one.config): one.config for one in model.modules() if hasattr(one, "config")}
    asked = {key: config._experts_implementation for key, config in configs.items() if _has_experts(config)}
    ALL_EXPERTS_FUNCTIONS.register(COUNTED_EXPERTS, counted_experts)
    try:
        for key in asked:
            configs[key]._experts_implementation = COUNTED_EXPERTS
        yield
    finally:
        for key, name in asked.items():
            configs[key]._experts_implementation = name


def _has_experts(config: Any) -> bool:
    return getattr(config, "_experts_implementation", None) is not None
