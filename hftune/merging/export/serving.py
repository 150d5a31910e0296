"""A folder that an inference server takes as it is: 16-bit weights, template, and every token that ends an answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from hftune.arguments.export import ServingArguments
from hftune.logging import notice
from hftune.merging.export.turns import terminator
from hftune.weight_files import weight_files

INDEX = "model.safetensors.index.json"


def write_serving_folder(folder: Path, output: Path, args: ServingArguments) -> dict[str, Any]:
    """Copy a model for serving; one weight file is in memory at a time.

    Generation settings name every token that ends an answer: a server that knows only the end of text runs on after
    a chat model's turn.

    Returns:
        `dtype`, `ends` (the tokens that end an answer) and `bytes` of the weights.
    """
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=args.trust_remote_code)
    tokenizer.save_pretrained(output)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=args.trust_remote_code)
    dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
    sizes = {file.name: _copy_weights(file, output / file.name, dtype) for file in weight_files(folder)}
    _copy_index(folder, output, sum(sizes.values()))
    if dtype is not None:
        config.dtype = dtype
    config.use_cache = True
    config.save_pretrained(output)
    ends = _write_generation_config(folder, output, tokenizer)
    return {"dtype": args.dtype, "ends": ends, "bytes": sum(sizes.values())}


def _copy_weights(source: Path, target: Path, dtype: torch.dtype | None) -> int:
    """Copy one file in another dtype; returns the bytes of its tensors."""
    tensors = load_file(source)
    cast = {
        name: tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    save_file(cast, target, metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in cast.values())


def _copy_index(folder: Path, output: Path, size: int) -> None:
    if not (folder / INDEX).is_file():
        return
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    index["metadata"] = index.get("metadata", {}) | {"total_size": size}
    (output / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_generation_config(folder: Path, output: Path, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    has_settings = (folder / "generation_config.json").is_file()
    settings = GenerationConfig.from_pretrained(folder) if has_settings else GenerationConfig()
    known = settings.eos_token_id
    ids = [known] if isinstance(known, int) else list(known or [])
    if not ids and tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    ends_turn = terminator(tokenizer)
    if ends_turn is not None:
        number = tokenizer.convert_tokens_to_ids(ends_turn)
        if number not in ids:
            notice(f"{ends_turn!r} ends an answer in the chat template and was no end for generation: it is one now")
            ids.append(number)
    settings.eos_token_id = ids[0] if len(ids) == 1 else ids
    settings.pad_token_id = tokenizer.pad_token_id
    settings.save_pretrained(output)
    for extra in ("chat_template.jinja",):
        if (folder / extra).is_file() and not (output / extra).is_file():
            shutil.copy(folder / extra, output / extra)
    return [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
