"""Mixtures of experts: which configs are one, and how their routers score."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from hftune.models.layer_values import layer_configs

# What configs call the number of experts that a router chooses from.
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

# What they call the number of experts that a token is sent to.
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")

SIGMOID_ROUTERS = ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "dots1", "minimax_m2")
"""Architectures (`model_type`) whose experts are chosen by sigmoid scores, not by a softmax over experts."""

SOFTMAX_ROUTERS = ("deepseek_v2",)
"""Those with a softmax of which transformers computes no load-balancing loss itself."""


def expert_count(config: PreTrainedConfig) -> int:
    """Experts that a router chooses from; 0 where the model is no mixture of experts."""
    return _largest(config, _COUNTS)


def experts_per_token(config: PreTrainedConfig) -> int:
    """Experts that a token is sent to; 0 where the model is no mixture of experts, or its config does not say."""
    return _largest(config, _CHOSEN)


def _largest(config: PreTrainedConfig, names: tuple[str, ...]) -> int:
    # The largest: configs may have several of these fields, some of them None, or a number for each layer.
    values = (getattr(layer, name, None) or 0 for layer in layer_configs(config) for name in names)
    return max(
        (max(map(int, value), default=0) if isinstance(value, list) else int(value) for value in values), default=0
    )


def routed_weights(model: nn.Module, config: PreTrainedConfig) -> list[nn.Parameter]:
    """The weights of those experts that a router chooses from, as the model has them: stacked, or one by one."""
    count = expert_count(config)
    if count < 2:
        return []
    return [
        one
        for name, one in model.named_parameters()
        if ".experts." in f".{name}" or (one.dim() == 3 and one.shape[0] == count)
    ]


def is_mixture(config: PreTrainedConfig) -> bool:
    """Whether a model of this config has experts."""
    return expert_count(config) > 1


def router_shares(config: PreTrainedConfig) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """From router logits (tokens, experts) to shares of each expert that add up to 1; None where that is not known."""
    text = config.get_text_config()
    if text.model_type == "doge":  # scores of two halves of an expert's number
        return None
    if text.model_type in SIGMOID_ROUTERS:
        return _sigmoid_shares
    if text.model_type in SOFTMAX_ROUTERS or hasattr(text, "router_aux_loss_coef"):
        return _softmax_shares
    return None


def routers_of(model: nn.Module) -> dict[nn.Module, int]:
    """The routers of a model, in the order of its layers, and which of their outputs are logits.

    They are the modules whose logits transformers can record.
    """
    places: dict[type, int] = {}
    for module in model.modules():
        recorder: Any = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
        # A class, or a recorder that names one and which of its outputs is meant.
        kind = getattr(recorder, "target_class", recorder)
        if isinstance(kind, type):
            places[kind] = getattr(recorder, "index", 0)
    return {module: place for module in model.modules() for kind, place in places.items() if isinstance(module, kind)}


def _softmax_shares(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().softmax(dim=-1)


def _sigmoid_shares(logits: torch.Tensor) -> torch.Tensor:
    scores = logits.float().sigmoid()
    return scores / scores.sum(dim=-1, keepdim=True)


def gather_experts_at_once(model: nn.Module) -> int:
    """Have ZeRO-3 gather a layer's experts when the layer calls them, not as each is called; how many layers.

    Which experts a process calls depends on its tokens, and ZeRO-3 wants the same calls on all of them. Those whose
    weights are stacked and computed in one call need nothing.
    """
    from deepspeed.utils import set_z3_leaf_module  # takes seconds, and is needed only where ZeRO-3 is at work

    found = [module for name, module in model.named_modules() if name.split(".")[-1] == "experts"]
    # An activation function is called by each, too, but alone it has nothing to gather.
    several = [module for module in found if len(list(module.children())) > 1 or _has_weights(module.children())]
    for module in several:
        set_z3_leaf_module(module, True)
    return len(several)


def _has_weights(modules: Iterable[nn.Module]) -> bool:
    return any(True for module in modules for _ in module.parameters())
