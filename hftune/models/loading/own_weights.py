"""Weights that a run of hftune wrote, by the names of the parameters that they were saved from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hftune.compat.patches import no_deepspeed_config
from hftune.opening.safetensors_file import load_tensors, read_safetensors_header
from hftune.weight_files import weight_files


def stored_otherwise(model: Any, folder: str | Path) -> bool:
    """Whether a folder's weights have other names than this model's: transformers splits experts that it fuses.

    Args:
        model: The model that the folder was saved from; for adapters, which peft names itself, the answer is no.
    """
    if not isinstance(model, PreTrainedModel):
        return False
    own = {*model.state_dict()}
    return any(name not in own for file in weight_files(folder) for name in read_safetensors_header(file).tensors)


def tensors_by_parameter(model: Any, folder: str | Path) -> dict[str, torch.Tensor]:
    """The whole tensors of a folder that this model was saved into, by the names of its parameters.

    Args:
        model: A PreTrainedModel, partitioned or not, or an adapter around one.

    Raises:
        ManifestError: A file is damaged, or larger than the free memory.
    """
    if not stored_otherwise(model, folder):
        return {name: tensor for file in weight_files(folder) for name, tensor in load_tensors(file).items()}
    # The widest of its numbers, so that nothing is rounded: parameters may have several types.
    wide = any(parameter.dtype == torch.float32 for parameter in model.parameters())
    # transformers itself knows how to put together what it has taken apart. Whole, also where the live model is not.
    with no_deepspeed_config():
        read = type(model).from_pretrained(
            folder, config=model.config, dtype=torch.float32 if wide else model.dtype, local_files_only=True
        )
    return dict(read.state_dict())
