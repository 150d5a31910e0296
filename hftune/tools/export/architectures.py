"""Maps checkpoints of an architecture to GGUF: tensor names, row orders, and the keys that llama.cpp needs.

Which key belongs to which architecture is written down in llama.cpp's own converter (its folder `conversion`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import torch
from transformers import PretrainedConfig

from hftune.errors import ArgumentError

_EXPERT = re.compile(r"(?P<block>.*\.layers\.\d+)\.(?:mlp|block_sparse_moe)\.experts\.(?P<number>\d+)\.(?P<name>\w+)\.")
# Mixtral's names of the three matrices of an expert.
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass(frozen=True)
class Architecture:
    """One architecture of llama.cpp.

    Attributes:
        arch: Its number in the gguf package.
        permutes: Whether rows of the query and key projections are reordered: transformers rotates halves of a head,
            llama.cpp's `llama` rotates neighbours.
        norm_shift: What is added to norm weights: Gemma stores them less 1.
        ignores_head: Whether the head is always the embedding.
        more: Writes the keys beyond those that all have.
    """

    arch: gguf.MODEL_ARCH
    permutes: bool = False
    norm_shift: float = 0.0
    ignores_head: bool = False
    more: Callable[[gguf.GGUFWriter, Any], None] = lambda writer, config: None

    @property
    def name(self) -> str:
        """The name in `general.architecture`."""
        return gguf.MODEL_ARCH_NAMES[self.arch]


def _llama(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(head_dim(config))


def _qwen_moe(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)


def _phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    # Phi-4-mini rotates a part of each head only; Phi-3 has no such factor.
    writer.add_rope_dimension_count(int(head_dim(config) * float(_rope(config).get("partial_rotary_factor", 1.0))))
    writer.add_rope_scaling_orig_ctx_len(
        _rope(config).get("original_max_position_embeddings") or config.max_position_embeddings
    )
    writer.add_sliding_window(config.sliding_window or 0)  # 0 tells Phi-4 from Phi-3


_LLAMA = Architecture(gguf.MODEL_ARCH.LLAMA, permutes=True, more=_llama)
ARCHITECTURES: dict[str, Architecture] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": Architecture(gguf.MODEL_ARCH.QWEN2),
    "qwen3": Architecture(gguf.MODEL_ARCH.QWEN3),
    "qwen2_moe": Architecture(gguf.MODEL_ARCH.QWEN2MOE, more=_qwen_moe),
    "qwen3_moe": Architecture(gguf.MODEL_ARCH.QWEN3MOE, more=_qwen_moe),
    # Gemma's norms multiply by 1 + weight, llama.cpp's by the weight. Its head is tied, even where a checkpoint stores
    # one.
    "gemma2": Architecture(gguf.MODEL_ARCH.GEMMA2, norm_shift=1.0, ignores_head=True, more=_gemma2),
    "gemma3_text": Architecture(gguf.MODEL_ARCH.GEMMA3, norm_shift=1.0, ignores_head=True, more=_gemma3),
    "phi3": Architecture(gguf.MODEL_ARCH.PHI3, more=_phi3),
}
"""Architectures by transformers' `model_type`; each is proven by reading the file back (tests/unit/tools/export)."""


def architecture_of(config: PretrainedConfig) -> Architecture:
    """The GGUF architecture of a config.

    Raises:
        ArgumentError: hftune does not know it, or it scales its positions in a way that GGUF has no keys for.
    """
    known = ARCHITECTURES.get(config.model_type)
    if known is None:
        raise ArgumentError(
            f"hftune writes no GGUF of {config.model_type} models",
            place="--model_name_or_path",
            fix=f"it does of {', '.join(ARCHITECTURES)}; else use llama.cpp's convert_hf_to_gguf.py on the folder",
        )
    if _rope_type(config) not in ("default", "linear", "yarn", "llama3"):
        raise ArgumentError(
            f"hftune writes no GGUF of models with {_rope_type(config)} position scaling",
            place="--model_name_or_path",
            fix="use llama.cpp's convert_hf_to_gguf.py on the folder",
        )
    return known


def add_parameters(writer: gguf.GGUFWriter, config: Any, known: Architecture, rows: int) -> None:
    """Write sizes, positions and experts.

    Args:
        writer: Open, nothing else written.
        config: The text model's config.
        known: Its architecture.
        rows: Rows of the embedding, which count, whatever the config or the tokenizer say.
    """
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    # Padded rows count: llama.cpp refuses a file whose embedding has another number of rows than tokens.
    writer.add_vocab_size(rows)
    # Mixtral has the first name, Qwen the second.
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    _add_positions(writer, config)
    known.more(writer, config)


def _add_positions(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = _rope(config)
    # transformers 5 moves rope_theta into `rope_parameters`; an older config may still have it outside.
    writer.add_rope_freq_base(float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0))
    # Gemma 3's layers with a window have a rope base of their own.
    local = (config.rope_parameters or {}).get("sliding_attention")
    if local:
        writer.add_rope_freq_base_swa(float(local["rope_theta"]))
    kind = _rope_type(config)
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    # llama3 is not here: llama.cpp reads its factors as a tensor (`extra_tensors`).
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(float(rope["factor"]))
        writer.add_rope_scaling_orig_ctx_len(int(rope["original_max_position_embeddings"]))


def extra_tensors(config: Any) -> dict[str, torch.Tensor]:
    """Llama 3's factors of each frequency, float32 of shape (head size / 2,), which llama.cpp reads as a tensor.

    The formula is that of Llama 3.1's reference code: long waves are divided by the factor, short ones kept, and those
    between blended.
    """
    if _rope_type(config) != "llama3":
        return {}
    rope, size = _rope(config), head_dim(config)
    old, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    waves = old / (2 * math.pi / frequencies)  # how often a wave turns within the old context
    smooth = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return {"rope_freqs.weight": 1.0 / ((1.0 - smooth) / factor + smooth)}


def head_dim(config: Any) -> int:
    """Size of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def reorder(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (heads x size) of a query or key projection from halves to neighbours, as llama.cpp's `llama` rotates."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def expert_of(name: str) -> tuple[str, int] | None:
    """The name that all experts of a layer share for one matrix, and the expert's number; None for another tensor.

    `model.layers.0.block_sparse_moe.experts.3.w1.weight` is ("model.layers.0.mlp.experts.gate_proj.weight", 3).
    """
    found = _EXPERT.match(name)
    if found is None:
        return None
    matrix = _MIXTRAL.get(found["name"], found["name"])
    return f"{found['block']}.mlp.experts.{matrix}.weight", int(found["number"])


def _rope(config: Any) -> dict[str, Any]:
    """The position parameters; of the full-attention layers where there are two kinds."""
    parameters = config.rope_parameters or {}
    return parameters.get("full_attention", parameters)


def _rope_type(config: Any) -> str:
    return str(_rope(config).get("rope_type") or "default")
