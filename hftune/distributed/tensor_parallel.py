"""Tensor parallelism through DeepSpeed's AutoTP, with a full plan of which matrices are split.

Left alone, AutoTP (0.19.8) guesses by names, or also splits embeddings and head over the vocabulary. Losses that are
computed at labelled places only, or in chunks, multiply by the head's weight themselves: it stays whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hftune.distributed.ds_config import DsConfig
from hftune.logging import notice

KEY, SIZE, SPECS = "tensor_parallel", "autotp_size", "partition_config"

_COLUMN, _ROW, _SUMMED, _WHOLE = "colwise", "rowwise", "replicated_with_grad_allreduce", "embedding_rowwise"
STYLES = (_COLUMN, _ROW, _SUMMED, _WHOLE)
"""Of transformers' plans: those that split a matrix by heads or by neurons, and what such a split asks of others."""


def with_size(config: DsConfig, size: int) -> DsConfig:
    """The config with AutoTP switched on for groups of `size` processes; the same where that is 1."""
    if size == 1:
        return config
    # transformers (5.23) has the weights gathered for saving only if this is set, at any stage.
    zero = config.get("zero_optimization", {}) | {"stage3_gather_16bit_weights_on_model_save": True}
    return config | {KEY: {SIZE: size}, "zero_optimization": zero}


def plan_of(config: Any) -> dict[str, str]:
    """transformers' plan for splitting a model's layers: pattern of a module's name -> style; empty where it has none.

    Args:
        config: A PreTrainedConfig.
    """
    return dict(getattr(config.get_text_config(), "base_model_tp_plan", None) or {})


def unknown_styles(plan: Mapping[str, str]) -> dict[str, str]:
    """The entries of a plan that cannot be done here: fused projections, mixtures of experts."""
    return {pattern: style for pattern, style in plan.items() if style not in STYLES}


def layer_specs(plan: Mapping[str, str]) -> list[dict[str, Any]]:
    """DeepSpeed's `layer_specs` for a plan; what no spec names stays whole: norms, embeddings, the head."""
    kinds: dict[str, dict[str, Any]] = {
        # A column split gives each rank some outputs, a row split some inputs: its products are summed over the ranks.
        _COLUMN: {"partition_type": "column"},
        _ROW: {"partition_type": "row"},
        # Norms of single heads: each rank has gradients of its own heads only.
        _SUMMED: {"partition_type": "skip", "grad_allreduce": True},
    }
    return [{"patterns": [_pattern(name)], **kinds[style]} for name, style in plan.items() if style in kinds]


def _pattern(name: str) -> str:
    """`layers.*.mlp.up_proj` as a regular expression for the whole name of its weight."""
    return ".*" + name.replace(".", r"\.").replace("*", r"\d+") + r"\.weight$"


def without_block(config: DsConfig) -> DsConfig:
    """The config without the block, for loading: with it, transformers (5.23) reads no weights under ZeRO-3."""
    return {key: value for key, value in config.items() if key != KEY}


def write_plan(config: DsConfig, size: int, model_config: Any) -> None:
    """Write AutoTP's size and plan for this model into the config of a run, in place.

    Args:
        config: The live one, which the engine will read, after the model was loaded.
        size: Processes that share the matrices of a layer, more than one.
        model_config: A PreTrainedConfig whose plan was found good in preflight.
    """
    specs = {"use_default_specs": False, "layer_specs": layer_specs(plan_of(model_config))}
    # Only now: while the model is loaded, transformers must not see the block (`without_block`).
    config[KEY] = {SIZE: size, SPECS: specs}
    notice(f"{size} processes share the matrices of the layers; embeddings, norms and head are whole in each")
