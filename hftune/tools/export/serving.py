"""Writes a folder that an inference server takes as it is: 16-bit weights, template, tokens that end an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from hftune.constants import PROCESSOR_FILES
from hftune.inference.prompts import write_generation_config
from hftune.merging.plan import Output
from hftune.merging.tensors import FLOATS, NAMES, nbytes
from hftune.merging.write import write_weights
from hftune.models.loading.from_pretrained import pretrained
from hftune.opening.files import copy_file
from hftune.tools.export.arguments import ServingArguments
from hftune.tools.export.template import exported_tokenizer
from hftune.weight_files import stored_tensors


def write_serving_folder(folder: Path, output: Path, args: ServingArguments) -> dict[str, Any]:
    """Copy a model for serving; one tensor is in memory at a time.

    Returns:
        `dtype`, `ends` (the tokens that end an answer) and `bytes` of the weights.
    """
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = exported_tokenizer(folder, trust_remote_code=args.trust_remote_code)
    tokenizer.save_pretrained(output)
    config = pretrained(AutoConfig, folder, trust_remote_code=args.trust_remote_code)
    dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
    tensors = _outputs(folder, dtype)
    write_weights(output, tensors, args.max_shard_size)
    if dtype is not None:
        config.dtype = dtype
    # Training with recomputation turns it off, and generation without it computes the whole prefix for every token.
    config.use_cache = True
    config.save_pretrained(output)
    # Of what makes images and sounds into inputs, where the model has parts for these.
    for file in folder.glob(PROCESSOR_FILES):
        copy_file(file, output / file.name, within=folder)
    ends = write_generation_config(folder, output, tokenizer)
    return {"dtype": args.dtype, "ends": ends, "bytes": sum(nbytes(one.dtype, one.shape) for one in tensors)}


def _outputs(folder: Path, dtype: torch.dtype | None) -> list[Output]:
    """All tensors of a model, in a dtype; packed weights and counters are integers, and stay what they are."""
    found = stored_tensors(folder)
    return [
        Output(name, NAMES[dtype] if dtype and one.dtype in FLOATS else one.dtype, one.shape, one)
        for name, one in found.items()
    ]
