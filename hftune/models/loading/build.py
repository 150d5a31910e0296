"""How a model is built: its config, attention and dtype, decided once for whoever loads it; and without weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import zero
from hftune.models.attention.layout import attention_for
from hftune.models.loading.config import model_config
from hftune.models.loading.from_pretrained import from_config
from hftune.models.structure import freeze_other_parts


def weight_dtype(model_args: ModelArguments, training_args: StageArguments, *, trains_all: bool) -> torch.dtype:
    """Dtype of the loaded weights.

    Weights that an optimizer updates are kept in float32 (autocast or DeepSpeed computes in bf16), since small updates
    vanish in bf16. A frozen base is loaded in the compute dtype where that is bf16 or fp16.
    """
    if model_args.dtype != "auto":
        return cast(torch.dtype, getattr(torch, model_args.dtype))
    if trains_all:
        return torch.float32
    return compute_dtype(training_args)


def compute_dtype(training_args: StageArguments) -> torch.dtype:
    """Dtype that a run's forward passes compute in, whatever its weights are stored in.

    Outside of a forward pass torch does not know: autocast is on within passes alone.
    """
    if training_args.bf16:
        return torch.bfloat16
    return torch.float16 if training_args.fp16 else torch.float32


@dataclass(frozen=True)
class Build:
    """What is decided of a model before it loads.

    Args:
        config: With rope scaling and dropout as asked for. Loaders change a copy.
        attention: The `attn_implementation`; None leaves the choice to transformers.
        dtype: Of the loaded weights; "auto": as they are stored.
    """

    config: PreTrainedConfig
    attention: str | None
    dtype: torch.dtype


def decide_build(model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments) -> Build:
    """The build of a model whose row layout is decided.

    Raises:
        ArgumentError: There is no such config, or rows lie side by side that the model cannot keep apart.
    """
    config = model_config(model_args, training_args)
    attention = attention_for(config, model_args, training_args)
    return Build(config, attention, weight_dtype(model_args, training_args, trains_all=not adapter_args.use_peft))


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
