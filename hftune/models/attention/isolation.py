"""Whether documents of one row can be kept apart in a model, by its architecture or by the attention asked for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)

from hftune.errors import ArgumentError
from hftune.models.attention.machine import Machine
from hftune.models.attention.names import SEGMENTS, VARLEN

WITHOUT_PACKING = "leave out --packing, --padding_free; for text: --packing False or --cross_document_attention True"

ISOLATED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "sparse", "dense", "moe"}
"""Kinds of layers, in transformers' words, in which a token's past is what its attention mask says."""


def class_for(mapping: Mapping[Any, Any], config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """The class that transformers builds from a config by one of its mappings; None where it knows none."""
    if type(config) not in mapping:
        return None
    found = mapping[type(config)]
    # Some architectures have several classes for one config; the first is the usual one.
    model_class: type[PreTrainedModel] = found[0] if isinstance(found, tuple) else found
    return model_class


def causal_class(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """The class of a causal LM of this config, or None where its code comes with the model."""
    return class_for(MODEL_FOR_CAUSAL_LM_MAPPING, config)


def reward_class(config: PreTrainedConfig, *, steps: bool) -> type[PreTrainedModel] | None:
    """The class that transformers builds for a reward model; None where it knows none."""
    mapping = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING if steps else MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    return class_for(mapping, config)


def refuse_unless_isolated(config: PreTrainedConfig, model_class: type[PreTrainedModel] | None) -> None:
    """Refuse a model whose documents would see each other in a row, whatever the attention.

    Raises:
        ArgumentError: Layers with a state that runs on (Mamba, linear attention), positions or attention of its own.
    """
    reason = why_not_isolated(config, model_class)
    if reason:
        raise ArgumentError(
            f"documents in a row cannot be kept apart in {config.model_type}: {reason}",
            place="--packing / --padding_free",
            fix=WITHOUT_PACKING,
        )


def why_not_isolated(config: PreTrainedConfig, model_class: type[PreTrainedModel] | None) -> str | None:
    """Why tokens of this model reach others by other ways than attention; None where they do not."""
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if model_class is None:
        return "its code comes with the model, and cannot be checked"
    # Models with layers of different kinds name them all in `layer_types`; others say it of the whole class.
    if model_class._is_stateful or layers - ISOLATED_LAYERS:
        kinds = ", ".join(sorted(layers - ISOLATED_LAYERS)) or "a recurrent state"
        return f"it has layers whose past is more than the attention mask says ({kinds})"
    if not model_class._supports_attention_backend:
        return "it has an attention of its own, which no document borders reach"
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return "it takes no position ids"
    return None


def refuse_attention(asked: str, machine: Machine) -> None:
    """Refuse an attention that is not known to keep documents apart, or that cannot run here.

    Raises:
        ArgumentError: Naming those that do.
    """
    # Also kernels of the Hub with that word in their name, which take the borders of documents alike.
    flash = "flash" in asked
    if flash and (not machine.major or not machine.half):
        raise ArgumentError(
            f"{asked} needs a GPU and half precision",
            place="--attn_implementation",
            fix=f"add --bf16 on a GPU, or leave the flag out ({SEGMENTS} is used)",
        )
    if not flash and asked not in ("eager", "sdpa", "flex_attention", SEGMENTS, VARLEN):
        raise ArgumentError(
            f"{asked} is not known to keep packed documents apart",
            place="--attn_implementation",
            fix="leave the flag out, or give flash_attention_2, flash_attention_3, flash_attention_4, flex_attention, "
            f"sdpa, eager, {SEGMENTS} or {VARLEN}",
        )


def why_not_shareable(config: PreTrainedConfig, size: int) -> str | None:
    """Why the tokens of a row of this model cannot be shared by `size` processes; None where nothing is known."""
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    if isinstance(heads, int) and heads < size:
        return f"its {heads} heads of attention do not suffice for {size} processes"
    chunked = "chunked_attention" in (getattr(text, "layer_types", None) or ())
    if chunked or getattr(text, "attention_chunk_size", None):
        return "its chunked attention is laid out from the beginning of a slice, not of a document"
    return None
