"""Experts on tensors without data: which expert gets a token is a matter of values, and how much is kept is not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

COUNTED = "hftune_counted"


class _GroupedMatmul(torch.autograd.Function):
    """As `grouped_mm`: keeps its input and the weights of all experts, and returns a gradient for both."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor, width: int) -> torch.Tensor:
        ctx.save_for_backward(tokens, weight)
        return tokens.new_empty((tokens.shape[0], width))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        wanted = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        tokens, weight = (torch.empty_like(one) if needed else None for one, needed in wanted)
        return tokens, weight, None


def counted_experts(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The tensors of transformers' `grouped_mm_experts_forward`, in its order.

    Args:
        hidden_states: (tokens, hidden size).
        top_k_index: (tokens, experts a token), and their weights alike.
    """
    tokens, chosen = top_k_index.shape
    order = torch.empty_like(top_k_index.reshape(-1))
    selected = hidden_states[order // chosen]
    shares = top_k_weights.reshape(-1)[order]
    weight = self.gate_up_proj if self.has_gate else self.up_proj
    width = weight.shape[-1] if self.is_transposed else weight.shape[-2]
    out = _GroupedMatmul.apply(selected.to(weight.dtype), weight, width)
    out = self._apply_gate(out) if self.has_gate else self.act_fn(out)
    weight = self.down_proj
    out = _GroupedMatmul.apply(out.to(weight.dtype), weight, hidden_states.shape[-1])
    weighted = (out * shares.unsqueeze(-1))[order]
    return weighted.view(tokens, chosen, -1).sum(dim=1).to(hidden_states.dtype)


@contextlib.contextmanager
def experts_counted(model: nn.Module) -> Iterator[None]:
    """Let the model's experts be computed like this for a while."""
    configs: dict[int, Any] = {id(one.config): one.config for one in model.modules() if hasattr(one, "config")}
    asked = {key: config._experts_implementation for key, config in configs.items() if _has_experts(config)}
    ALL_EXPERTS_FUNCTIONS.register(COUNTED, counted_experts)
    try:
        for key in asked:
            configs[key]._experts_implementation = COUNTED
        yield
    finally:
        for key, name in asked.items():
            configs[key]._experts_implementation = name
        # transformers lists what is registered to its users.
        del ALL_EXPERTS_FUNCTIONS._global_mapping[COUNTED]


def _has_experts(config: Any) -> bool:
    return getattr(config, "_experts_implementation", None) is not None
