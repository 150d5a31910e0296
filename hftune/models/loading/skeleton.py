"""A model without weights: its structure on the meta device, from the config alone, for arithmetic before loading."""

from __future__ import annotations

import copy

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import zero
from hftune.models.loading.config_sizes import check_config
from hftune.models.loading.from_pretrained import from_config, pretrained


def skeleton(config: PreTrainedConfig, training_args: StageArguments, *, scores: bool = False) -> PreTrainedModel:
    """The model that this config stands for, with all parameters on the meta device: a 70B model takes 0.15 s.

    Args:
        config: Not changed.
        training_args: `trust_remote_code`.
        scores: Give a sequence classification model with one label instead of a causal LM.
    """
    auto = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    config = copy.deepcopy(config)  # building a model writes into its config
    if scores:
        config.num_labels = 1
    with zero.no_partitioning(), torch.device("meta"), no_init_weights():
        model = from_config(auto, config, trust_remote_code=training_args.trust_remote_code)
    # transformers ties after loading; until then tied embeddings would count twice.
    model.tie_weights()
    return model


def skeleton_of(model_args: ModelArguments, training_args: StageArguments, *, scores: bool) -> PreTrainedModel | None:
    """The skeleton of the model that was named; None where it cannot be made.

    It cannot from a GGUF file (the config is inside), without a config that can be reached, or for an architecture that
    has no such head. Loading reports each of these.

    Args:
        model_args: `model_name_or_path`, revision and cache.
        training_args: `trust_remote_code`.
        scores: With the head of a reward model.
    """
    if model_args.gguf_file or not model_args.model_name_or_path:
        return None
    check_config(model_args.model_name_or_path)
    try:
        config = pretrained(
            AutoConfig,
            model_args.model_name_or_path,
            revision=model_args.model_revision,
            cache_dir=model_args.cache_dir,
            trust_remote_code=training_args.trust_remote_code,
            **({"num_labels": 1} if scores else {}),
        )
        return skeleton(config, training_args, scores=scores)
    except (OSError, ValueError, KeyError):
        return None
