"""The merged model's files: which tensor lies where, and their bytes, one tensor in memory at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from hftune.errors import ArgumentError, ManifestError
from hftune.logging import notice
from hftune.merging.changes import read_float
from hftune.merging.model_config import write_config
from hftune.merging.plan import Output, Plan
from hftune.merging.tensors import DTYPES, FLOATS, nbytes, read_pieces, read_tensor, write_tensors
from hftune.models.kernels.finite import finite
from hftune.on_demand import on_demand
from hftune.publishing.disk import free_bytes
from hftune.weight_files import INDEX_NAME, WEIGHTS_NAME, parse_size

_SPARE_BYTES = 1 << 24
"""For configs and tokenizer."""
_LINE_EVERY = 10.0
"""Seconds between lines of progress where there is no terminal."""


def write_model(plan: Plan, folder: Path, max_shard_size: str | None) -> int:
    """Weights and config into a folder; returns how many tensors the adapters changed.

    Raises:
        ManifestError: None was changed, or a merged weight is not finite.
        ArgumentError: The disk cannot hold them.
    """
    if plan.outputs is None:
        # Imports transformers and peft, which take seconds.
        changed = on_demand("hftune.merging.peft_model:write_with_peft")(plan, folder, max_shard_size)
    else:
        changes = write_weights(folder, plan.outputs, max_shard_size)
        changed, same = changes.count(True), changes.count(False)
        if changed and same:
            notice(f"{same} of {changed + same} adapted tensors are the base's own after rounding")
        write_config(plan.inputs, folder)
    if not changed:
        raise ManifestError(
            f"merging {plan.inputs.names} changes nothing: every weight would be that of the base",
            place="--peft_model_path",
            fix="was the adapter trained? its B matrices are zero, or it is too small for the dtype of the weights",
        )
    return changed


def write_weights(folder: Path, tensors: list[Output], max_shard_size: str | None) -> list[bool | None]:
    """Weight files, and their index where there are several.

    Returns:
        For each tensor whether adapters changed it; None where no adapter is for it.

    Raises:
        ManifestError: A tensor is not finite.
        ArgumentError: The disk cannot hold them.
    """
    shards = lay_out(tensors, max_shard_size)
    total, free = _nbytes(tensors), free_bytes(folder)
    if free < total + _SPARE_BYTES:
        raise ArgumentError(
            f"the model needs {total / 1e9:.2f} GB, the disk of {folder} has {free / 1e9:.2f} GB left",
            place="--output_dir",
            fix="make room, name a folder on another disk, or write a smaller dtype (--dtype bfloat16)",
        )
    every = 0.1 if sys.stderr.isatty() else _LINE_EVERY
    changes: list[bool | None] = []
    with tqdm(total=total, unit="B", unit_scale=True, desc="merging", mininterval=every, delay=every) as progress:
        for file, held in shards.items():
            by_name = {output.name: output for output in held}

            def values_of(name: str, by_name: dict[str, Output] = by_name) -> Iterator[Tensor]:
                values, changed = merged(by_name[name])
                changes.append(changed)
                for piece in values:
                    progress.update(piece.nbytes)
                    yield piece

            write_tensors(folder / file, ((one.name, one.dtype, one.shape) for one in held), values_of)
    read_float.cache_clear()  # a second merge in this process may read other files under the same names
    write_index(folder, shards)
    return changes


# --- which tensor lies where -----------------------------------------------------------------------------------------


Shards = dict[str, list[Output]]
"""Of each file its tensors in the order of their bytes."""


def lay_out(tensors: list[Output], max_shard_size: str | None) -> Shards:
    """Into files named and divided as the base's own, or into files of at most `max_shard_size`."""
    if max_shard_size is not None:
        from huggingface_hub import split_torch_state_dict_into_shards

        by_name = {output.name: output for output in tensors}
        # The plan needs sizes alone: tensors on the meta device take no memory.
        sizes = {one.name: torch.empty(one.shape, dtype=DTYPES[one.dtype], device="meta") for one in tensors}
        divided = split_torch_state_dict_into_shards(
            sizes, filename_pattern="model{suffix}.safetensors", max_shard_size=parse_size(max_shard_size)
        )
        return {file: [by_name[name] for name in names] for file, names in divided.filename_to_tensors.items()}
    files: Shards = {}
    file = WEIGHTS_NAME
    for output in tensors:
        # A new tensor, a head, stands behind the last of the old ones.
        file = file if output.source is None else output.source.file.name
        files.setdefault(file, []).append(output)
    return files if len(files) > 1 else {WEIGHTS_NAME: tensors}


def write_index(folder: Path, shards: Shards) -> None:
    """model.safetensors.index.json, where there is more than one file."""
    if len(shards) < 2:
        return
    tensors = [output for held in shards.values() for output in held]
    where = {output.name: file for file, held in shards.items() for output in held}
    index = {
        "metadata": {
            "total_parameters": sum(prod(output.shape) for output in tensors),
            "total_size": _nbytes(tensors),
        },
        "weight_map": dict(sorted(where.items())),
    }
    # Sorted and indented as transformers writes it, so that the same merge gives the same bytes.
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _nbytes(tensors: list[Output]) -> int:
    return sum(nbytes(one.dtype, one.shape) for one in tensors)


# --- their values ----------------------------------------------------------------------------------------------------


def merged(output: Output) -> tuple[Iterable[Tensor], bool | None]:
    """A tensor as it is written, in pieces, and whether adapters changed it; None where no adapter is for it.

    Raises:
        ManifestError: It is not finite, or becomes so in its dtype.
    """
    if output.where is None:
        assert output.source is not None
        pieces = read_pieces(output.source)
        return (one if one.dtype == DTYPES[output.dtype] else _round(one, output) for one in pieces), None
    before = None if output.source is None else read_tensor(output.source)
    exact = None if before is None else before.to(torch.float32, copy=True)
    for update in output.updates:
        exact = update.apply(exact, output.where)
    assert exact is not None
    values = _round(exact, output)
    return [values], before is None or not torch.equal(values, before.to(values.dtype))


def _round(exact: Tensor, output: Output) -> Tensor:
    """Rounded once to the dtype asked for.

    Raises:
        ManifestError: NaN, or a number that the dtype cannot hold.
    """
    values = exact.to(DTYPES[output.dtype])
    # Eight bits (torch knows no `isfinite` of theirs) are written as they are, or folded by peft.
    if output.dtype not in FLOATS or bool(finite(values)):
        return values
    large = bool(finite(exact))
    raise ManifestError(
        f"{output.name} holds {'numbers too large for ' + output.dtype if large else 'NaN or infinity'}",
        fix="use --dtype bfloat16" if large else "the weights are broken: take an earlier checkpoint, or train again",
    )
