"""Whether what a config.json says can be a model's at all, looked at before anything is built from it.

transformers makes a list of one entry a layer as it reads a config, and a skeleton one module: of 10^9 layers neither
ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError, shown
from hftune.opening.model_files import read_checked

# About a hundred times the sizes of the largest models there are.
_NAMES = {
    10_000: """
        num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_nextn_predict_layers depth
        num_hidden_groups num_decoder_layers num_encoder_layers mtp_num_hidden_layers first_k_dense_replace
    """,
    100_000: """
        num_attention_heads num_key_value_heads n_head num_heads n_routed_experts num_experts num_local_experts
        n_shared_experts moe_num_experts num_experts_per_tok head_dim mamba_n_heads conv_kernel
    """,
    10_000_000: """
        hidden_size d_model n_embd intermediate_size ffn_dim n_inner d_ff moe_intermediate_size kv_lora_rank
        q_lora_rank shared_expert_intermediate_size embedding_size vocab_size_per_layer_input state_size
    """,
    100_000_000: "vocab_size n_positions",
    10_000_000_000: "max_position_embeddings",
}
LIMITS = {name: limit for limit, names in _NAMES.items() for name in names.split()}
_DEEP = 8
"""Configs within configs: text, vision and audio parts lie one deep."""


def check_config(name: str | Path | None, flag: str = "--model_name_or_path") -> dict[str, Any]:
    """The config.json of a local folder, looked at; nothing of a name on the Hub, which is not there yet.

    Raises:
        ArgumentError: It is no JSON object, holds sizes that no model has (all of them in one message), or names
            kernels of the Hub.
    """
    file = Path(name or "") / "config.json"
    if not name or not file.is_file():
        return {}
    config = read_checked(file, error=ArgumentError, fix="copy or download the model again")
    check_sizes(config, str(file), flag)
    kernels = [*_foreign_kernels(config, "", 0)]
    if kernels:
        raise ArgumentError(
            f"config.json names code of others that would be downloaded and run: {'; '.join(kernels)}",
            place=f"{file} ({flag})",
            fix="take it out of config.json; --attn_implementation chooses an implementation",
        )
    return config


def check_sizes(config: Mapping[str, Any], place: str, flag: str = "--model_name_or_path") -> None:
    """Look at the sizes in a config and in the configs within it.

    Raises:
        ArgumentError: Sizes that no model has, all of them in one message.
    """
    found = [*_implausible(config, "", 0)]
    if found:
        raise ArgumentError(
            f"config.json says what no model has: {'; '.join(found)}",
            place=f"{place} ({flag})",
            fix="copy or download the model again",
        )


def _foreign_kernels(config: Mapping[str, Any], within: str, depth: int) -> Iterator[str]:
    """Implementations that are named as a repository's, which transformers fetches where it finds `kernels`."""
    for name, value in config.items():
        if isinstance(value, Mapping) and depth < _DEEP:
            yield from _foreign_kernels(value, f"{within}{name}.", depth + 1)
        # One for each part of a model has the part's name, below that of all.
        elif "_implementation" in f"{within}{name}" and "/" in str(value):
            yield f"{within}{name} is {shown(value)}"


def _implausible(config: Mapping[str, Any], within: str, depth: int) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping) and depth < _DEEP:
            yield from _implausible(value, f"{within}{name}.", depth + 1)
        elif name in LIMITS and isinstance(value, int | float) and not -1 <= value <= LIMITS[name]:
            # NaN is in no interval; some write -1 for none.
            yield f"{within}{name} is {shown(value)}, at most {LIMITS[name]:,}"
