"""A model without weights: its structure on the meta device, from the config alone, for arithmetic before loading."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from hftune.arguments import ModelArguments, StageArguments


def skeleton(config: PreTrainedConfig, training_args: StageArguments, *, scores: bool = False) -> PreTrainedModel:
    """The model that this config stands for, with all parameters on the meta device: a 70B model takes 0.15 s.

    Args:
        config: Not changed.
        training_args: Whose DeepSpeed config must not partition what has no values.
        scores: Give a sequence classification model with one label instead of a causal LM.
    """
    auto = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    config = copy.deepcopy(config)
    if scores:
        config.num_labels = 1
    with _without_zero(training_args), torch.device("meta"), no_init_weights():
        model = auto.from_config(config, trust_remote_code=training_args.trust_remote_code)
    model.tie_weights()  # or tied embeddings would count twice
    return model


def skeleton_of(model_args: ModelArguments, training_args: StageArguments, *, scores: bool) -> PreTrainedModel | None:
    """The skeleton of the model that was named; None where it cannot be made.

    It cannot from a GGUF file (the config is inside), without a config that can be reached, or for an architecture that
    has no such head: loading has its own words for these.

    Args:
        model_args: `model_name_or_path`, revision and cache.
        training_args: `trust_remote_code`.
        scores: With the head of a reward model.
    """
    if model_args.gguf_file or not model_args.model_name_or_path:
        return None
    try:
        config = AutoConfig.from_pretrained(
            model_args.model_name_or_path,
            revision=model_args.model_revision,
            cache_dir=model_args.cache_dir,
            trust_remote_code=training_args.trust_remote_code,
            **({"num_labels": 1} if scores else {}),
        )
        return skeleton(config, training_args, scores=scores)
    except (OSError, ValueError, KeyError):
        return None


@contextmanager
def _without_zero(training_args: StageArguments) -> Iterator[None]:
    """Under ZeRO-3, transformers would partition whatever is built."""
    active = getattr(training_args, "hf_deepspeed_config", None)
    if active is None:
        yield
        return
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(active)
