"""The structure of a model, found by config and modules: layers, heads, experts, and the parts that read no text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import GradientCheckpointingLayer, PreTrainedConfig

from hftune.models.classes import has_parts

NOT_ATTENTION = frozenset({"linear_attention", "conv", "mamba", "mamba2", "recurrent", "mlp", "moe"})
"""Kinds of layers, in transformers' words, without attention over pairs of tokens."""


def layer_configs(config: Any) -> list[Any]:
    """The config of each layer: the same one for all, unless the layers differ."""
    text = config.get_text_config()
    if getattr(text, "is_heterogeneous", False):
        return list(text.per_layer_config)
    return [text] * int(text.num_hidden_layers)


def attention_layers(config: Any) -> list[Any]:
    """The configs of those layers that have attention over pairs of tokens; a config without kinds has it in all."""
    kinds = getattr(config.get_text_config(), "layer_types", None)
    every = [one for one in layer_configs(config) if getattr(one, "num_attention_heads", 0)]
    if not kinds:
        return every
    return [one for one, kind in zip(every, kinds, strict=False) if kind not in NOT_ATTENTION]


def head_size(layer: Any) -> int:
    """The elements of a head of one layer; 0 without heads. The larger where keys and values differ."""
    heads = getattr(layer, "num_attention_heads", 0) or 0
    if not heads:
        return 0
    if getattr(layer, "kv_lora_rank", None) and getattr(layer, "v_head_dim", None):
        # Latent attention: `head_dim` is that of rotated positions alone.
        return max(int(layer.qk_nope_head_dim + layer.qk_rope_head_dim), int(layer.v_head_dim))
    return int(getattr(layer, "head_dim", None) or layer.hidden_size // heads)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks of a decoder."""
    found = _layers(model)
    return [] if found is None else list(found)


def decoder_list(model: nn.Module) -> str | None:
    """Name of the list of decoder layers; None without one."""
    layers = _layers(model)
    return next((name for name, module in model.named_modules() if module is layers), None)


def _layers(model: nn.Module) -> nn.ModuleList | None:
    """The outermost list of modules that is as long as the config says there are layers."""
    config: Any = getattr(model, "config", None)
    count = getattr(config.get_text_config(), "num_hidden_layers", None)
    for part in _decoder_first(model):
        for module in part.modules():
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return module
    # Of a model that was cut down, whose config still says how many there were; or whose config counts otherwise: a
    # layer as two, or each as often as it is gone through.
    found = checkpointed_layers(model)
    layers: nn.ModuleList | None = getattr(*found) if found else None
    return layers


def checkpointed_layers(model: nn.Module) -> tuple[nn.Module, str] | None:
    """The module that holds the decoder layers, and under which name; None where the model has none of that make."""
    found: tuple[nn.Module, str] | None = None
    most = 0
    for part in _decoder_first(model):
        for module in part.modules():
            for name, child in module.named_children():
                # The longest, since a decoder may have further lists of such layers (a predictor's).
                if not isinstance(child, nn.ModuleList) or len(child) <= most:
                    continue
                if all(isinstance(layer, GradientCheckpointingLayer) for layer in child):
                    found, most = (module, name), len(child)
        if found is not None:
            return found
    return None


def _decoder_first(model: nn.Module) -> list[nn.Module]:
    """Where to look for decoder layers: in the decoder of text, and only without any there in the whole model.

    A vision tower comes first in many models, and may have as many layers as the decoder, or more.
    """
    ask = getattr(model, "get_decoder", None)
    decoder = ask() if callable(ask) else None
    return [decoder, model] if isinstance(decoder, nn.Module) and decoder is not model else [model]


def head_of(model: nn.Module) -> str:
    """A key of `constants.TASK_TYPES`: causal_lm, score or steps.

    Args:
        model: The plain model, not an adapter around it.
    """
    if not hasattr(model, "score"):
        return "causal_lm"
    return "steps" if type(model).__name__.endswith("ForTokenClassification") else "score"


def body_of(model: Any) -> nn.Module:
    """The part below a causal LM's head, which returns hidden states; the model itself where it has no such part.

    transformers' `base_model` is the model itself where a class names a part that it does not have (Llama 4, Mllama):
    there it is the part that owns the token embeddings.
    """
    if model.base_model is not model:
        return model.base_model
    embeddings = model.get_input_embeddings()
    owners = (child for child in model.children() if child is not embeddings and embeddings in set(child.modules()))
    return next(owners, model)


def without_tied(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A state dict without the names under which a tied matrix is there a second time."""
    # transformers finds them by their memory, which DeepSpeed's copies (ZeRO-1 and 2) no longer share: the head would
    # be written next to the embeddings that it is.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    doubles = {
        name
        for name, source in tied.items()
        if name in state and source in state and model.get_parameter(name) is model.get_parameter(source)
    }
    return {name: value for name, value in state.items() if name not in doubles}


def other_parts(model: Any) -> list[str]:
    """Names of the outermost modules and parameters that have no share in reading and writing text; none of others.

    Args:
        model: A language model has no other parts. On any device.
    """
    config = getattr(model, "config", None)
    if config is None or not has_parts(config):
        return []
    ends = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    text = {id(part) for part in (*ends, getattr(model, "score", None)) if part is not None}
    return [] if id(model) in text else [*_without(model, "", text)]


def _without(module: nn.Module, prefix: str, text: set[int]) -> Iterator[str]:
    yield from (f"{prefix}{name}" for name, _ in module.named_parameters(recurse=False))
    for name, child in module.named_children():
        if id(child) in text:
            continue
        if any(id(part) in text for part in child.modules()):
            yield from _without(child, f"{prefix}{name}.", text)
        elif any(True for _ in child.parameters()):
            yield f"{prefix}{name}"


def is_within(name: str, parts: list[str]) -> bool:
    """Whether a module or parameter is one of these, or lies in one."""
    return f"{name}.".startswith(tuple(f"{part}." for part in parts))


def other_parameters(model: Any) -> set[int]:
    """Ids of the parameters of `other_parts`."""
    parts = other_parts(model)
    # Of a parameter that a text part shares (one table of embeddings for both) every name must be another part's.
    names = [(name, id(one)) for name, one in model.named_parameters(remove_duplicate=False)]
    return {one for name, one in names if is_within(name, parts)} - {
        one for name, one in names if not is_within(name, parts)
    }


def freeze_other_parts(model: Any) -> None:
    """Train nothing of `other_parts`."""
    frozen = other_parameters(model)
    for parameter in model.parameters():
        if id(parameter) in frozen:
            parameter.requires_grad_(False)


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
    several = [
        module
        for module in found
        if len(list(module.children())) > 1 or any(True for child in module.children() for _ in child.parameters())
    ]
    for module in several:
        set_z3_leaf_module(module, True)
    return len(several)
