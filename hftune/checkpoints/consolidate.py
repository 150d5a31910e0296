"""Whole weights from the pieces that ZeRO's ranks wrote, through DeepSpeed's own reader, a weight file at a time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import load_file, save_file

from hftune.arguments.consolidating import ConsolidateArguments
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.logging import get_logger
from hftune.weight_files import weight_files, weight_shapes

# Beside the weights; what belongs to training stays behind.
CARRIED = ("config.json", "generation_config.json", "adapter_config.json", "chat_template.jinja", "hftune.json")
INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def consolidate(args: ConsolidateArguments) -> Path:
    """Write the weights of a DeepSpeed checkpoint as safetensors, with config and tokenizer; returns the folder.

    The fp32 master weights are read, which are finer than the 16-bit copy that is exported with a checkpoint.

    Raises:
        UserError: All problems together, before anything is written.
    """
    raise_together(check_consolidation(args))
    checkpoint, output = Path(str(args.checkpoint)), Path(str(args.output_dir))
    aside = output.with_name(f".{output.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    _convert(checkpoint, aside, args)
    if (checkpoint / "adapter_config.json").is_file():
        _as_adapter(aside)
    for file in checkpoint.iterdir():
        if file.name in CARRIED or file.name.startswith(("tokenizer", "special_tokens", "vocab", "merges", "added_")):
            shutil.copy(file, aside / file.name)
    _compare_shapes(checkpoint, aside)
    shutil.rmtree(output, ignore_errors=True)
    os.replace(aside, output)
    get_logger().info("%s tensors of %s: %s", len(weight_shapes(output)), checkpoint, output)
    return output


def check_consolidation(args: ConsolidateArguments) -> Iterator[UserError]:
    """The checkpoint is DeepSpeed's and whole enough, and the output replaces nothing by accident."""
    folder = Path(args.checkpoint or "")
    if not args.checkpoint or not folder.is_dir():
        yield ArgumentError(f"there is no folder {args.checkpoint}", place="--checkpoint", fix="give a checkpoint-N")
    elif not list(folder.glob("global_step*")):
        whole = "; its weights are whole already" if weight_files(folder) else ""
        yield ArgumentError(
            f"{folder} is no checkpoint of DeepSpeed{whole}", place="--checkpoint", fix="check the path"
        )
    elif not (folder / "latest").is_file():
        yield ArgumentError(
            f"DeepSpeed had not finished writing {folder}", place="--checkpoint", fix="take the checkpoint before it"
        )
    if not args.output_dir:
        yield ArgumentError("no output folder was named", place="--output_dir", fix="give one")
    elif weight_files(args.output_dir) and not args.overwrite_output_dir:
        yield ArgumentError(
            f"{args.output_dir} already holds weights",
            place="--output_dir",
            fix="choose another folder, or add --overwrite_output_dir",
        )


def exported_name(name: str) -> str:
    """The name under which peft and transformers save a live parameter."""
    for part in (".default", ".modules_to_save"):
        name = name.removesuffix(part).replace(f"{part}.", ".")
    return name


def _convert(checkpoint: Path, output: Path, args: ConsolidateArguments) -> None:
    """Write the tensors, one of those that are tied, with an index where there are several files."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint, to_torch_tensor  # heavy

    pieces = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), lazy_mode=True)
    first = {id(piece): name for name, piece in reversed(pieces.items())}
    pieces = {name: piece for name, piece in pieces.items() if first[id(piece)] == name}
    dtype = getattr(torch, args.dtype)
    sizes = to_torch_tensor(pieces, return_empty_tensor=True, dtype=dtype)
    plan = split_torch_state_dict_into_shards(
        sizes, filename_pattern="model{suffix}.safetensors", max_shard_size=args.max_shard_size
    )
    for file, names in plan.filename_to_tensors.items():
        tensors = to_torch_tensor({name: pieces[name] for name in names}, dtype=dtype)
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, output / file, metadata={"format": "pt"}
        )
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (output / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _as_adapter(folder: Path) -> None:
    """An adapter's tensors alone, under peft's names, in one file."""
    tensors = {name: tensor for file in weight_files(folder) for name, tensor in load_file(file).items()}
    own = {
        exported_name(name): tensor for name, tensor in tensors.items() if ".lora_" in name or "modules_to_save" in name
    }
    for file in folder.iterdir():
        file.unlink()
    save_file(own, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def _compare_shapes(checkpoint: Path, output: Path) -> None:
    """Against the weights that were exported with the checkpoint, where they were."""
    exported, found = weight_shapes(checkpoint), weight_shapes(output)
    missing = sorted(name for name in exported if exported[name] != found.get(name))
    # A tied head is one tensor in the engine and none, or two, in a file.
    missing = [name for name in missing if not name.endswith("lm_head.weight")]
    assert not missing, f"{output} lacks {missing[:3]} of {checkpoint}"
