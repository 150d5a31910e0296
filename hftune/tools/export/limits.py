"""Finds models that llama.cpp would compute wrongly: some things it does in one way, whatever the file says.

Read off llama.cpp's `src/models/*.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.tools.export.architectures import head_dim

_LARGEST_GEMMA = {"gemma2": 46, "gemma3_text": 62}  # layers of the one size whose attention is scaled by another rule
_LOCAL_LAYERS = {"gemma2": 2, "gemma3_text": 6}  # every n-th layer sees all, the others a window
_NORMALISES_EXPERTS = {"qwen2_moe": False, "qwen3_moe": True}


def check_llama_cpp(config: Any) -> Iterator[UserError]:
    """Problems of a text config."""
    for reason in _reasons(config):
        yield ArgumentError(
            f"llama.cpp cannot run this model: {reason}",
            place="--model_name_or_path",
            fix="serve it with transformers or vLLM: hftune export vllm",
        )
    # A notice and no problem: short texts are computed as they should be.
    window = getattr(config, "sliding_window", None)
    if config.model_type in ("mistral", "mixtral", "phi3") and window and window < config.max_position_embeddings:
        notice(
            f"llama.cpp attends over the whole text, where this model sees {window} tokens back: longer texts differ"
        )


def _reasons(config: Any) -> Iterator[str]:
    kind = config.model_type
    if kind in _LARGEST_GEMMA:
        yield from _gemma_reasons(config, kind)
    if kind in _NORMALISES_EXPERTS and bool(config.norm_topk_prob) != _NORMALISES_EXPERTS[kind]:
        yield f"it takes norm_topk_prob={_NORMALISES_EXPERTS[kind]}, the config says {config.norm_topk_prob}"
    if kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe") and getattr(config, "use_sliding_window", False):
        yield "it has no sliding window for Qwen"
    if kind in ("qwen2_moe", "qwen3_moe") and (config.mlp_only_layers or config.decoder_sparse_step != 1):
        yield "it takes experts in every layer"
    if getattr(config, "hidden_act", None) not in (None, "silu", "gelu_pytorch_tanh"):
        yield f"it takes silu here, the config says {config.hidden_act}"


def _gemma_reasons(config: Any, kind: str) -> Iterator[str]:
    size = head_dim(config)
    # llama.cpp tells the 27B models by their number of layers, and scales these by hidden size / heads.
    largest = config.num_hidden_layers == _LARGEST_GEMMA[kind]
    scale = config.hidden_size // config.num_attention_heads if largest else size
    if config.query_pre_attn_scalar != scale:
        yield f"it scales attention by {scale}, the config says query_pre_attn_scalar={config.query_pre_attn_scalar}"
    every = _LOCAL_LAYERS[kind]
    layers = [
        "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
        for layer in range(config.num_hidden_layers)
    ]
    if list(config.layer_types) != layers:
        yield f"it takes every {every}th layer for one of full attention"
    if kind == "gemma3_text" and getattr(config, "attn_logit_softcapping", None):
        yield "it has no attn_logit_softcapping for Gemma 3"
