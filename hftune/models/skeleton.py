"""A model's modules, names and shapes without its weights: what a check before loading may look at."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from hftune.arguments import ModelArguments, StageArguments


def skeleton(model_args: ModelArguments, training_args: StageArguments, *, scores: bool) -> PreTrainedModel | None:
    """The model on the meta device, from its config alone, in well under a second; None where it cannot be made.

    It cannot from a GGUF file (the config is inside), without a config that can be reached, or for an architecture that
    has no such head: loading has its own words for these.

    Args:
        model_args: `model_name_or_path`, revision and cache.
        training_args: `trust_remote_code`.
        scores: With the head of a reward model.
    """
    if model_args.gguf_file or not model_args.model_name_or_path:
        return None
    auto: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    trust = training_args.trust_remote_code
    try:
        config = AutoConfig.from_pretrained(
            model_args.model_name_or_path,
            revision=model_args.model_revision,
            cache_dir=model_args.cache_dir,
            trust_remote_code=trust,
            **({"num_labels": 1} if scores else {}),
        )
        with torch.device("meta"):
            model = auto.from_config(config, trust_remote_code=trust)
    except (OSError, ValueError, KeyError):
        return None
    model.tie_weights()
    return model
