"""How a model is built: its config, attention and dtype, decided once and handed to whoever loads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from transformers import PreTrainedConfig

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.models.attention.layout import attention_for
from hftune.models.loading.config import model_config


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
