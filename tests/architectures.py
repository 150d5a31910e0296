"""Tiny random models of the architectures that hftune promises, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tiny_tokenizer

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    # Large enough for the layers to matter beside the embeddings, so that a wrong layer shows in the logits.
    "initializer_range": 0.1,
}
_HEAD = {"head_dim": 8}
_SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_DEEPSEEK = {
    **_LATENT,
    **_EXPERTS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}

# model_type: what differs from _COMMON. Each has what sets the architecture apart: soft caps, sliding windows, partial
# rope, fused projections, latent attention, shared and routed experts.
_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {**_HEAD, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 64, **_HEAD},
    "gemma": _HEAD,
    "gemma2": {**_HEAD, **_SLIDING, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_HEAD, **_SLIDING, "query_pre_attn_scalar": 8},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"original_max_position_embeddings": 512},
    "glm": _HEAD,
    "glm4": _HEAD,
    "deepseek_v2": {**_DEEPSEEK, "topk_method": "greedy"},
    "deepseek_v3": _DEEPSEEK,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {**_HEAD, **_EXPERTS, "num_experts": 4},
    "ernie4_5": {**_HEAD, "tie_word_embeddings": True},
}

# Not among those whose every stage is tried: what a part of the tests needs besides.
_FURTHER: dict[str, dict[str, Any]] = {
    # As Qwen1.5-MoE, shares of the chosen experts do not add up to 1. (Where they do, two experts of the model that
    # seed 0 gives come so near in step 9 of the tests' SFT that rounding chooses between them.)
    "qwen2_moe": {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16, "norm_topk_prob": False},
}

ARCHITECTURES: tuple[str, ...] = tuple(_CONFIGS)
"""transformers' `model_type` of each."""

# As many as show every shape of a layer: the others take minutes, in `make test-all`.
_QUICK = ("llama", "gemma3_text", "phi", "phi3", "deepseek_v3", "mixtral")


def few_quick(names: Sequence[str] = ARCHITECTURES, quick: Sequence[str] = _QUICK) -> list[Any]:
    """These names as parameters of a test, all but the quick ones slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


MIXTURES_OF_EXPERTS: tuple[str, ...] = ("deepseek_v2", "deepseek_v3", "mixtral", "qwen3_moe")


def make_config(name: str, **changes: Any) -> Any:
    """The tiny config of an architecture, for the tests' tiny tokenizer.

    Args:
        name: One of `ARCHITECTURES`, or qwen2_moe.
        changes: Fields to give other values.
    """
    from transformers import AutoConfig

    tokenizer = tiny_tokenizer()
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    # More rows than tokens, as most real models have; some architectures' own tokenizer classes add a token or two.
    rows = 64 * (len(tokenizer) // 64 + 1)
    fields = _COMMON | {"vocab_size": rows} | ids | (_CONFIGS | _FURTHER)[name] | changes
    return AutoConfig.for_model(name, **fields)


def make_model(name: str, folder: Path, **changes: Any) -> Path:
    """A random causal LM of an architecture with the tests' tokenizer and chat template, saved in `folder`.

    The same name and changes give the same weights. `changes` are fields of its config.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(make_config(name, **changes), dtype=torch.float32)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
