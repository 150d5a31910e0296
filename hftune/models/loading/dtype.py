"""In which dtype weights are loaded."""

from __future__ import annotations

from typing import cast

import torch

from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments


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
