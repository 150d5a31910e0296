"""A model without weights: its structure on the meta device, from the config alone, for arithmetic before loading."""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from hftune.distributed import zero
from hftune.models.loading.from_pretrained import from_config
from hftune.models.structure import freeze_other_parts


class TrustsCode(Protocol):
    """Arguments that say whether a model's own code may run."""

    trust_remote_code: bool


def skeleton(config: PreTrainedConfig, training_args: TrustsCode, *, scores: bool = False) -> PreTrainedModel:
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
    freeze_other_parts(model)
    return model
