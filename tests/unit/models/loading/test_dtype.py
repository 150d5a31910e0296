"""In which dtype weights are loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from hftune.arguments.entry import parse_arguments
from hftune.models.loading.build import weight_dtype


def test_weights_that_are_updated_stay_in_float32(tiny_model: Path) -> None:
    model_args, _, _, training = parse_arguments("sft", ["--output_dir", "o", "--bf16"])
    assert weight_dtype(model_args, training, trains_all=True) is torch.float32
    assert weight_dtype(model_args, training, trains_all=False) is torch.bfloat16
