"""Writes a folder that an inference server takes as it is: 16-bit weights, template, tokens that end an answer."""

from __future__ import annotations

import json
import math
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from hftune.constants import PROCESSOR_FILES
from hftune.merging.tensors import FLOATS
from hftune.models.loading.from_pretrained import pretrained
from hftune.opening.files import copy_file
from hftune.opening.safetensors_file import open_tensors
from hftune.tools.export.arguments import ServingArguments
from hftune.tools.export.template import exported_tokenizer
from hftune.tools.talking.ends import write_generation_config
from hftune.weight_files import INDEX_NAME, StoredTensor, divide, numbered, parse_size, stored_tensors


def write_serving_folder(folder: Path, output: Path, args: ServingArguments) -> dict[str, Any]:
    """Copy a model for serving; one weight file is in memory at a time.

    Returns:
        `dtype`, `ends` (the tokens that end an answer) and `bytes` of the weights.
    """
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = exported_tokenizer(folder, trust_remote_code=args.trust_remote_code)
    tokenizer.save_pretrained(output)
    config = pretrained(AutoConfig, folder, trust_remote_code=args.trust_remote_code)
    dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
    size = _write_weights(folder, output, dtype, args.max_shard_size)
    if dtype is not None:
        config.dtype = dtype
    # Training with recomputation turns it off, and generation without it computes the whole prefix for every token.
    config.use_cache = True
    config.save_pretrained(output)
    # Of what makes images and sounds into inputs, where the model has parts for these.
    for file in folder.glob(PROCESSOR_FILES):
        copy_file(file, output / file.name, within=folder)
    ends = write_generation_config(folder, output, tokenizer)
    return {"dtype": args.dtype, "ends": ends, "bytes": size}


def _write_weights(folder: Path, output: Path, dtype: torch.dtype | None, limit: str | None) -> int:
    """Write all weights in a dtype, file by file or into files of another size, and return their bytes."""
    files = _lay_out(stored_tensors(folder), dtype, limit)
    for name, tensors in files.items():
        # Servers on transformers 4 refuse a file whose metadata names no format.
        save_file(_read(tensors, dtype), output / name, metadata={"format": "pt"})
    size = sum(_nbytes(tensor, dtype) for tensors in files.values() for tensor in tensors.values())
    if len(files) > 1:
        where = {tensor: name for name, tensors in files.items() for tensor in tensors}
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
        (output / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return size


def _lay_out(
    tensors: dict[str, StoredTensor], dtype: torch.dtype | None, limit: str | None
) -> dict[str, dict[str, StoredTensor]]:
    """The files to write, by name, with their tensors: as in the model, or of a size."""
    if limit:
        sizes = {name: _nbytes(tensor, dtype) for name, tensor in tensors.items()}
        divided = divide(sizes, parse_size(limit))
        return {file: {name: tensors[name] for name in names} for file, names in divided.items()}
    groups = [dict(found) for _, found in groupby(tensors.items(), key=lambda item: item[1].file)]
    return numbered(groups)


def _nbytes(tensor: StoredTensor, dtype: torch.dtype | None) -> int:
    # Packed weights and counters are integers, and stay what they are.
    if dtype is None or tensor.dtype not in FLOATS:
        return tensor.nbytes
    return math.prod(tensor.shape) * dtype.itemsize


def _read(tensors: dict[str, StoredTensor], dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    # Each source is opened once, however its tensors are mixed with others.
    for file in {tensor.file for tensor in tensors.values()}:
        with open_tensors(file) as stored:
            for name in (name for name, tensor in tensors.items() if tensor.file == file):
                tensor = stored.get_tensor(name)
                found[name] = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
    return found
