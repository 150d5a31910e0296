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

NOT_TRAINED = {
    # Encoders, of which a causal LM was made afterwards.
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
    *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    # Decoders of encoder-decoders.
    *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "musicgen", "musicgen_melody"),
    *("mvp", "pegasus", "plbart", "prophetnet", "trocr", "whisper"),
    # Decoders before 2023 with a cache, a memory, permutations or languages of their own.
    *("cpmant", "ctrl", "openai-gpt", "reformer", "xlm", "xlnet"),
}
"""Types of models with a causal LM that hftune does not train. Older ones without any of that (GPT-2, BLOOM, OPT,
Pythia) need no line here."""


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
