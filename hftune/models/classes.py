"""The classes that transformers, or hftune where it has none, builds from a config: a model with all of its parts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

_WITHOUT_TEXT = {"idefics", "evolla", "molmo2"}
"""Types whose class reads no text without an image, a protein, or in training the kind of each token."""
_LISTED: dict[Any, Mapping[Any, Any]] = {
    AutoModelForImageTextToText: MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForMultimodalLM: MODEL_FOR_MULTIMODAL_LM_MAPPING,
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
}
"""What loads models that answer in text, those of several parts first, and where transformers lists them."""


def has_parts(config: PreTrainedConfig) -> bool:
    """Whether the language model is a part of what the config describes: there are towers or encoders besides."""
    return config.get_text_config(decoder=True) is not config


def auto_class(config: PreTrainedConfig) -> Any:
    """transformers' auto class that loads all of a model that answers in text.

    `AutoModelForCausalLM` is also the answer for models that it does not know: their code comes with them.
    """
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not has_parts(config):
        return AutoModelForCausalLM
    return next((auto for auto, listed in _LISTED.items() if type(config) in listed), AutoModelForCausalLM)


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
    """The class of a model of this config that answers in text, or None where its code comes with the model."""
    return class_for(_LISTED[auto_class(config)], config)


def reads_text_alone(config: PreTrainedConfig) -> bool:
    """Whether a model of transformers' reads one row of tokens and predicts the next, with nothing else given."""
    if auto_class(config) is AutoModelForCausalLM and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return True
    if getattr(config, "is_encoder_decoder", False) or config.model_type in _WITHOUT_TEXT:
        return False
    kind = causal_class(config)
    # A diffusion and an encoder's decoder read a second row; a model that also speaks (Qwen Omni) has no such pass.
    given = {"input_ids"} if kind is None else {*inspect.signature(kind.forward).parameters}
    return "input_ids" in given and "decoder_input_ids" not in given


def reward_class(config: PreTrainedConfig, *, steps: bool) -> type[PreTrainedModel] | None:
    """The class that transformers builds for a reward model, or is given for one; None where there is none."""
    make_reward_models(config)
    mapping = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING if steps else MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    return class_for(mapping, config)


def make_reward_models(config: PreTrainedConfig) -> None:
    """Have transformers' auto classes make a reward model of this config's decoder where it has no class for one."""
    kind, causal = type(config), causal_class(config)
    if kind not in MODEL_MAPPING or causal is None:
        return
    for mapping, generic in (
        (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, GenericForSequenceClassification),
        (MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, GenericForTokenClassification),
    ):
        decoder = class_for(MODEL_MAPPING, config)
        if kind not in mapping and decoder is not None and _takes_all(decoder):
            # Held under the name by which the language model holds it, and checkpoints store it.
            named = f"self.{causal.base_model_prefix} =" in inspect.getsource(causal.__init__)
            prefix = causal.base_model_prefix if named else "model"
            mapping.register(kind, _classifier(decoder, kind, generic, prefix), exist_ok=True)


def _takes_all(decoder: type[PreTrainedModel]) -> bool:
    """Whether a decoder takes what transformers' generic classifiers hand on: no Mamba does, nor Bart."""
    given = inspect.signature(decoder.forward).parameters
    handed_on = {"use_cache"} if any(one.kind is one.VAR_KEYWORD for one in given.values()) else set()
    return {"position_ids", "past_key_values", "inputs_embeds", "use_cache"} - handed_on <= given.keys()


class _Scores:
    """Comes before transformers' generic classifiers, which ask every decoder for its cache."""

    base_model_prefix: str

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        getattr(self, self.base_model_prefix).register_forward_hook(_name_cache)


def _name_cache(module: nn.Module, args: Any, output: Any) -> None:
    if not hasattr(output, "past_key_values"):  # Recurrent Gemma's states are kept in its layers
        output.past_key_values = None


def _classifier(
    decoder: type[PreTrainedModel], config: type[PreTrainedConfig], generic: type, prefix: str
) -> type[PreTrainedModel]:
    """A reward model over a decoder, held under `prefix`."""
    name = decoder.__name__.removesuffix("Model") + generic.__name__.removeprefix("Generic")
    # What all classes of an architecture share: which attentions it has, how weights begin, which modules stay whole.
    family = next(one for one in decoder.__mro__[1:] if issubclass(one, PreTrainedModel))
    own = {
        "config_class": config,
        "base_model_prefix": prefix,
        "__module__": __name__,
        "__doc__": f"{decoder.__name__} with a head.",
        "_is_stateful": getattr(decoder, "_is_stateful", False),
        "input_modalities": ("text",),
        # The modules are transformers' own: buffers that a decoder fills for its layers (Falcon-H1) are filled.
        "is_custom_code": classmethod(lambda cls: False),
    }
    made: type[PreTrainedModel] = type(name, (_Scores, generic, family), own)
    return made
