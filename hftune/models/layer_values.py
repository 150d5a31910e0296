"""Values of a config that differ from layer to layer, read layer by layer: transformers refuses to name one for all."""

from __future__ import annotations

from typing import Any

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
