"""`hftune consolidate`: whole weights from the shards of ZeRO's ranks, at any stage, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from hftune.arguments.option import option
from hftune.arguments.stages import parse_command
from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.inputs import inputs_of
from hftune.checkpoints.integrity import engine_folder
from hftune.checkpoints.manifest import COMPLETE, Manifest, finish_manifest, library_versions, read_manifest
from hftune.checkpoints.sharded_state import WEIGHTS, ShardedState, exported_name
from hftune.constants import TOKENIZER_FILES
from hftune.errors import ArgumentError, ManifestError, UserError, raise_together
from hftune.logging import get_logger
from hftune.merging.plan import Output
from hftune.merging.tensors import NAMES, write_tensors
from hftune.merging.write import lay_out, write_index
from hftune.models.loading.base_parts import keep_of_base
from hftune.opening.files import copy_file, unsafe_entries
from hftune.path_hints import missing_folder
from hftune.publishing.folder import published_folder
from hftune.publishing.places import check_place
from hftune.trainers.result import whole_base
from hftune.weight_files import fingerprint, parse_size, weight_files, weight_shapes

# Copied next to the weights; what belongs to training (optimizer, scheduler, random state) stays behind.
CARRIED = ("config.json", "generation_config.json", "adapter_config.json", *TOKENIZER_FILES)
ADAPTER_WEIGHTS = "adapter_model.safetensors"
Read = Callable[[], Tensor]


@dataclass
class ConsolidateArguments:
    """Whole weights from a DeepSpeed checkpoint of any ZeRO stage."""

    checkpoint: str | None = option(None, "Checkpoint folder (checkpoint-N).")
    output_dir: str | None = option(None, "Folder for the weights.")
    dtype: str = option("float32", "Dtype of the weights.", choices=["float32", "bfloat16", "float16"])
    max_shard_size: str = option("5GB", "Largest weight file.")
    overwrite_output_dir: bool = option(False, "Replace a finished result of hftune's there.")


def consolidate(args: ConsolidateArguments) -> Path:
    """Write the weights of a DeepSpeed checkpoint as safetensors, with config and tokenizer; returns the folder.

    The fp32 master weights are read, which are finer than the 16-bit copy that is exported with a checkpoint.

    Raises:
        UserError: All problems together, before anything is written.
    """
    raise_together(check_consolidation(args))
    checkpoint, output = Path(str(args.checkpoint)), Path(str(args.output_dir))
    with published_folder(output, overwrite=args.overwrite_output_dir, inputs=[checkpoint]) as aside:
        _convert(checkpoint, aside, args)
        for file in checkpoint.iterdir():
            if file.name in CARRIED:
                copy_file(file, aside / file.name, within=checkpoint)
        _compare_shapes(checkpoint, aside)
        _keep_other_parts(checkpoint, aside)
        # Last: a manifest says `complete` only of weights whose shapes were compared.
        finish_manifest(aside, _manifest(checkpoint, args))
    get_logger().info("%s tensors of %s: %s", len(weight_shapes(output)), checkpoint, output)
    return output


def check_consolidation(args: ConsolidateArguments) -> Iterator[UserError]:
    """Problems of the arguments: no checkpoint of DeepSpeed, an unfinished one, an output that is taken."""
    folder = Path(args.checkpoint or "")
    if not args.checkpoint or not folder.is_dir():
        yield missing_folder(args.checkpoint or "", "--checkpoint", "a folder such as outputs/sft/checkpoint-100")
    elif engine_folder(folder) is None:
        whole = "; its weights are whole already" if weight_files(folder) else ""
        yield ArgumentError(
            f"{folder} is no checkpoint of DeepSpeed{whole}",
            place="--checkpoint",
            fix=f"use {folder} as it is" if whole else "give a checkpoint-N that holds a folder global_stepN",
        )
    # DeepSpeed writes `latest` last: without it the writing of the shards was cut off.
    elif not any((folder / tag).is_file() for tag in ("latest", "latest_universal")):
        yield ArgumentError(
            f"DeepSpeed had not finished writing {folder}", place="--checkpoint", fix="take the checkpoint before it"
        )
    else:
        yield from unsafe_entries(folder)
    try:
        parse_size(args.max_shard_size)
    except ArgumentError as problem:
        yield problem
    yield from check_place(args.output_dir, inputs_of(args), overwrite=args.overwrite_output_dir)


def _manifest(checkpoint: Path, args: ConsolidateArguments) -> Manifest:
    """The manifest of the result: the checkpoint's own, as complete, with where the weights came from."""
    about = read_manifest(checkpoint) or {"hftune": library_versions().get("hftune"), "stage": "consolidate"}
    return about | {
        "status": COMPLETE,
        "consolidated": {"checkpoint": str(checkpoint), "fingerprint": fingerprint(checkpoint), "dtype": args.dtype},
    }


def _convert(checkpoint: Path, output: Path, args: ConsolidateArguments) -> None:
    """Write the tensors one at a time, tied ones once, and an index where there are several files."""
    folder = engine_folder(checkpoint)
    assert folder is not None
    tensors = _tensors(open_engine(folder), checkpoint)
    dtype = getattr(torch, args.dtype)
    planned = [Output(name, NAMES[dtype], shape, None) for name, (shape, _) in tensors.items()]
    # PEFT reads an adapter from one file of one name, so that it is never split.
    shards = {ADAPTER_WEIGHTS: planned} if _is_adapter(checkpoint) else lay_out(planned, args.max_shard_size)
    for file, held in shards.items():
        entries = [(one.name, one.dtype, one.shape) for one in held]
        write_tensors(output / file, entries, lambda name: [tensors[name][1]().to(dtype)])
    write_index(output, shards)


def _tensors(pieces: ShardedState, checkpoint: Path) -> dict[str, tuple[tuple[int, ...], Read]]:
    """Shape and reader of each tensor, by the name that it is saved under: of a model all, else the adapter's own."""
    read: dict[str, tuple[tuple[int, ...], Read]] = {
        name: (shape, partial(pieces.read, name, WEIGHTS)) for name, shape in pieces.shapes.items()
    }
    if _is_adapter(checkpoint):
        # The engine also holds frozen weights of the base; the adapter's own are those that were exported. Without an
        # export LoRA's matrices are known by their names.
        exported = weight_shapes(checkpoint)
        return {
            exported_name(name): entry
            for name, entry in read.items()
            if exported_name(name) in exported or (not exported and ".lora_" in name)
        }
    for name, frozen in pieces.frozen.items():
        read[name] = (tuple(frozen().shape), frozen)
    for name, value in pieces.buffers.items():
        read[name] = (tuple(value.shape), partial(torch.clone, value))
    # Of tied tensors one is written; transformers ties the others to it when the model is loaded.
    return {name: entry for name, entry in read.items() if name not in pieces.shared}


def _keep_other_parts(checkpoint: Path, output: Path) -> None:
    """Have the weights hold the other parts of the run's base as they are, where the base can be found."""
    about = read_manifest(checkpoint) or {}
    used = about.get("arguments", {}).get("model", {})
    if about.get("kind") != "full" or about.get("head") != "causal_lm" or used.get("from_config"):
        return
    base = whole_base(str(checkpoint), cache_dir=used.get("cache_dir"), revision=used.get("model_revision"))
    if base is None or base == checkpoint or not weight_files(base):
        return
    trusted = bool(about["arguments"].get("training", {}).get("trust_remote_code"))
    keep_of_base(output, base, cast=False, trusted=trusted)


def _is_adapter(checkpoint: Path) -> bool:
    return (checkpoint / "adapter_config.json").is_file()


def _compare_shapes(checkpoint: Path, output: Path) -> None:
    """Compare the shapes with those of the weights that were exported with the checkpoint, where there are any.

    Raises:
        ManifestError: They differ.
    """
    exported, found = weight_shapes(checkpoint), weight_shapes(output)
    # A tied head is one tensor in the engine and none, or two, in a file.
    wrong = [
        name for name, shape in exported.items() if shape != found.get(name) and not name.endswith("lm_head.weight")
    ]
    if wrong:
        raise ManifestError(
            f"{checkpoint} exports {wrong[0]} as {exported[wrong[0]]}, its pieces make {found.get(wrong[0])}",
            place="--checkpoint",
            fix="take the weights that lie in the checkpoint: an adapter that began with a part of its base is saved "
            "whole there, and only there",
        )


def main(argv: list[str]) -> None:
    """Run the command."""
    consolidate(parse_command(ConsolidateArguments, argv))
