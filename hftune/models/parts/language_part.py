"""Checkpoints of several parts: the language model in one that also sees or hears, found by what config and files hold.

A run on text loads the language model alone. Vision towers, projectors and heads that predict further stay in the
base's files, and are copied from there when a result is written (`whole_model.py`).
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.initialization import no_init_weights
from transformers.utils import CONFIG_NAME

from hftune.distributed import zero
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.parts.text_class import causal_over, classifier_over
from hftune.opening.json_file import read_json

Shape = tuple[int, ...]


def language_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the language model of a checkpoint: the one given, or that of the text within it (a copy).

    From then on transformers' auto classes build the language model of it, also where transformers has a class for the
    whole alone.

    Args:
        config: Of any model. One whose code comes with it decides by itself what is loaded.
    """
    if not type(config).__module__.startswith("transformers.") or has_two_streams(config):
        return config
    text = config.get_text_config(decoder=True)
    _know_language_model(text)
    if text is config:
        # The language model of such a checkpoint on its own.
        whole = _config_around(type(config))
        if whole is not None:
            _has_class(whole(), config)
        return config
    if not _has_class(config, text):
        return config
    text = copy.deepcopy(text)
    # The class of the whole ties by the whole's config, whatever that of the text says.
    text.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", getattr(text, "tie_word_embeddings", False)))
    text._name_or_path = config._name_or_path
    text.num_labels = config.num_labels
    text.dtype = text.dtype or config.dtype
    # As transformers does where it knows a language model of its own for such a config.
    if getattr(config, "quantization_config", None) is not None:
        text.quantization_config = config.quantization_config
    return text


def has_two_streams(config: PreTrainedConfig) -> bool:
    """Whether its answers are the tokens of a second stream: of an encoder and a decoder, or of a diffusion."""
    if getattr(config, "is_encoder_decoder", False):
        return True
    kind = whole_class(config)
    return kind is not None and "decoder_input_ids" in inspect.signature(kind.forward).parameters


def has_parts(config: PreTrainedConfig) -> bool:
    """Whether the language model is a part of what the config describes, and is loaded alone."""
    return language_config(config) is not config


def whole_config(folder: str | Path | None) -> PreTrainedConfig | None:
    """The config of a folder that holds several parts, of a type that transformers has; else None."""
    file = Path(str(folder)) / CONFIG_NAME
    found = read_json(file, finite=False) if file.is_file() else {}
    if found.get("model_type") not in CONFIG_MAPPING:
        return None
    config: PreTrainedConfig = pretrained(AutoConfig, folder, trust_remote_code=False)
    return config if has_parts(config) else None


def _config_around(kind: type[PreTrainedConfig]) -> type[PreTrainedConfig] | None:
    """The config class that has one of this kind within; None where a causal LM of that kind is known, or none has."""
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    module = vars(sys.modules[kind.__module__]).values()
    classes: list[type[PreTrainedConfig]] = [
        one for one in module if isinstance(one, type) and issubclass(one, PreTrainedConfig)
    ]
    return next((one for one in classes if kind in one.sub_configs.values()), None)


def _know_language_model(text: PreTrainedConfig) -> None:
    """Have the auto class of causal LMs know one that transformers lists among models that see alone (Mistral 4)."""
    own = None if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING else whole_class(text)
    if own is not None and own.input_modalities in ("text", ("text",)):
        MODEL_FOR_CAUSAL_LM_MAPPING.register(type(text), own, exist_ok=True)


def _has_class(config: PreTrainedConfig, text: PreTrainedConfig) -> bool:
    """Whether there is a language model of this config; made of the whole's decoder where transformers has none."""
    kind = type(text)
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        return True
    try:
        decoder = MODEL_MAPPING[kind] if kind in MODEL_MAPPING else _decoder_class(config, text)
    except (ImportError, ValueError):  # transformers names a class that it has not, or that another library makes
        return False
    if isinstance(decoder, tuple):
        decoder = decoder[0]
    if decoder is None:
        return False
    MODEL_MAPPING.register(kind, decoder, exist_ok=True)
    MODEL_FOR_CAUSAL_LM_MAPPING.register(kind, causal_over(decoder, config), exist_ok=True)
    for mapping, tokens in (
        (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, False),
        (MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, True),
    ):
        if kind not in mapping:
            mapping.register(kind, classifier_over(decoder, config, tokens=tokens), exist_ok=True)
    return True


def _decoder_class(config: PreTrainedConfig, text: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """The class of the decoder within the whole."""
    whole = bare_whole(config)
    name = None if whole is None else decoder_name(whole, type(text))
    return None if whole is None or name is None else type(whole.get_submodule(name))


def whole_class(config: PreTrainedConfig) -> Any:
    """transformers' class for a model of several parts that answers in text; None where it has none."""
    for mapping in (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    return None


def bare_whole(config: PreTrainedConfig) -> PreTrainedModel | None:
    """All parts on the meta device; None where transformers has no class for them, or another library makes one."""
    kind = whole_class(config)
    if kind is None:
        return None
    try:
        with zero.no_partitioning(), torch.device("meta"), no_init_weights():
            whole: PreTrainedModel = kind(copy.deepcopy(config))
    except (ImportError, ValueError):  # a vision tower of timm
        return None
    return whole


def decoder_name(whole: PreTrainedModel, text: type[PreTrainedConfig]) -> str | None:
    """The name of the decoder within the whole: what reads tokens and has a config of the text's class."""
    decoders = (
        name
        for name, module in whole.named_modules()
        if name and isinstance(module, PreTrainedModel) and type(module.config) is text and _is_decoder(module)
    )
    return next(decoders, None)


def _is_decoder(module: PreTrainedModel) -> bool:
    """Whether it reads tokens, and has no head."""
    try:
        return module.get_input_embeddings() is not None and module.get_output_embeddings() is None
    except (AttributeError, NotImplementedError):
        return False


# --- names -----------------------------------------------------------------------------------------------------------


def stored_prefixes(model: PreTrainedModel, stored: Mapping[str, Shape | None]) -> dict[str, str]:
    """Under which prefixes a checkpoint stores a language model, where these are others than the model's own.

    The index decides: the prefix under which most of the decoder's parameters are stored in their shapes.

    Args:
        model: The language model; on any device.
        stored: Names on disk with their shapes; None for a shape that is not known.

    Returns:
        A prefix on disk, with its last dot, to the model's; empty where no name differs.
    """
    own = f"{model.base_model_prefix}." if model.base_model_prefix else ""
    parameters = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    inner = {name.removeprefix(own): shape for name, shape in parameters.items() if name.startswith(own)}
    if not own or not inner:
        return {}
    votes: Counter[str] = Counter()
    for name, shape in stored.items():
        for prefix, rest in _splits(name):
            if rest in inner and shape in (None, inner[rest]):
                votes[prefix] += 1
    if not votes:
        return {}
    heads = _stored_heads(own, parameters, stored)
    every = set().union(*heads.values())

    def order(prefix: str) -> tuple[Any, ...]:
        # Of equal ones that with its head next to it (a talker as large as the thinker has none), then the shortest,
        # which is the model's own or none at all.
        near = max((_common(head, prefix) for head in every), default=0)
        return -votes[prefix], prefix != own, -near, len(prefix), prefix

    best = min(votes, key=order)
    found = {} if best in ("", own) else {best: own}
    # The head is stored next to the decoder or above.
    for module, prefixes in heads.items():
        if prefixes and best not in ("", own):
            nearest = max(prefixes, key=lambda prefix: (_common(prefix, best), -len(prefix), prefix))
            if nearest:
                found[f"{nearest}{module}."] = f"{module}."
    # The class's own rules may know such a prefix and have others for the head (Inkling 2). One layer stands for all.
    kinds = {re.sub(r"\d+", "#", name): name for name in stored}.values() if found else ()
    return {} if found and len(_placed(model, kinds, {})) > len(_placed(model, kinds, found)) else found


def _stored_heads(own: str, parameters: Mapping[str, Shape], stored: Mapping[str, Shape | None]) -> dict[str, set[str]]:
    """By module that is not in the decoder (the head), under which prefixes tensors of its names and shapes are."""
    found: dict[str, set[str]] = {}
    for module in sorted({name.split(".")[0] for name in parameters if not name.startswith(own)}):
        leaves = {name: shape for name, shape in parameters.items() if name.startswith(f"{module}.")}
        found[module] = {
            prefix
            for name, shape in stored.items()
            for prefix, rest in _splits(name)
            if rest in leaves and shape in (None, leaves[rest])
        }
    return found


def _placed(model: PreTrainedModel, stored: Iterable[str], prefixes: Mapping[str, str]) -> set[str]:
    """The parameters that stored tensors are of, by the class's rules behind prefixes."""
    rules, parameters = get_model_conversion_mapping(model, key_mapping(prefixes) or None), model.state_dict()
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    names = (rename_source_key(one, renamings, converters, model.base_model_prefix, parameters)[0] for one in stored)
    return {name for name in names if name in parameters}


def key_mapping(prefixes: Mapping[str, str]) -> dict[str, str]:
    """`stored_prefixes` as the argument `key_mapping` of `from_pretrained`: patterns to what takes their place."""
    return {f"^{re.escape(prefix)}": own for prefix, own in prefixes.items()}


def own_name(stored: str, prefixes: Mapping[str, str]) -> str:
    """What a stored name is without the other parts around the language model."""
    found = [prefix for prefix in prefixes if stored.startswith(prefix)]
    longest = max(found, key=len, default=None)
    return stored if longest is None else prefixes[longest] + stored.removeprefix(longest)


def stored_name(own: str, prefixes: Mapping[str, str]) -> str:
    """The inverse of `own_name`, for a tensor that the base does not have."""
    for prefix, mine in prefixes.items():
        if own.startswith(mine):
            return prefix + own.removeprefix(mine)
    return own


def _splits(name: str) -> Iterable[tuple[str, str]]:
    """A name cut at each of its dots into a prefix and the rest; first with none."""
    yield "", name
    for match in re.finditer(r"\.", name):
        yield name[: match.end()], name[match.end() :]


def _common(first: str, second: str) -> int:
    pairs = zip(first.split("."), second.split("."), strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), 99)
