"""The classes that transformers, or hftune where it has none, builds from a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)

from hftune.models.parts.text_class import make_reward_models


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
    """The class that transformers builds for a reward model, or is given for one; None where there is none."""
    make_reward_models(config)
    mapping = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING if steps else MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    return class_for(mapping, config)
