"""What a reference says of records, kept for the next run: under a fingerprint of all that decides it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import xxhash
from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from torch import nn

from hftune.distributed import ranks, zero
from hftune.logging import get_logger
from hftune.trainers.features.run import plain_model
from hftune.user_cache import read_sealed, write_sealed

_KEY = "key"
"""Member of a kept reference that says what it belongs to: a file may have been given another name."""

_FOLDER = "reference"
"""Of the cache."""

_NOT_WEIGHTS = ("_name_or_path", "transformers_version", "use_cache", "_attn_implementation")

Columns = dict[str, torch.Tensor]


def weights_fingerprint(model: nn.Module, *, adapter_off: bool) -> str:
    """128 bits in hex over the config and all weights that make up the reference; the same on all ranks.

    Partitioned weights are hashed as each rank holds them, so that another number of processes computes the reference
    again.

    Args:
        adapter_off: The adapter is switched off, and left out.
    """
    digest = xxhash.xxh3_128()
    adapted = isinstance(model, PeftModel) and adapter_off
    plain = plain_model(model)
    # Settings that change no number would have the reference computed again.
    config = {name: value for name, value in plain.config.to_dict().items() if name not in _NOT_WEIGHTS}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, parameter in model.named_parameters():
        if adapted and ".default." in name:
            continue
        # The part that this rank holds: gathering all weights only to hash them takes as long as a step.
        data: Any = zero.local_values(parameter).cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        # Without the prefix of peft: a model with its adapter off has the fingerprint of the plain one.
        digest.update(f"\0{name.replace('base_model.model.', '')} {parameter.dtype}\0".encode())
        digest.update(data)
    return xxhash.xxh3_128_hexdigest("".join(ranks.gathered_objects(digest.hexdigest())).encode())


def data_fingerprint(dataset: Dataset, columns: list[str]) -> str:
    """128 bits in hex over the token ids of `columns`, in their order."""
    digest = xxhash.xxh3_128()
    for start in range(0, len(dataset), 10_000):
        part = dataset[start : start + 10_000]
        for column in columns:
            for ids in part[column]:
                digest.update(np.asarray(ids, dtype=np.int64).tobytes() + b"\0")
    return digest.hexdigest()


def add_reference_columns(dataset: Dataset, key: str, compute: Callable[[], Columns]) -> Dataset:
    """The dataset with the reference's columns: from the cache, or computed by all ranks together and kept there.

    Args:
        key: Fingerprint of all that decides the numbers.
        compute: Gives float64 columns, one number a record, the same on all ranks; called by all ranks or none.
    """
    kept = _read_cache(key, len(dataset))
    # Machines have caches of their own, and `compute` needs all ranks or none.
    if ranks.all_agree(kept is not None):
        get_logger().info("reference from the cache: %s", key)
        columns = kept or {}
    else:
        columns = {name: values.cpu().numpy() for name, values in compute().items()}
        # One a machine: each has a cache of its own.
        if ranks.local_rank() == 0:
            _write_cache(key, columns)
        ranks.barrier()
    return concatenate_datasets([dataset, Dataset.from_dict(columns)], axis=1)


def _read_cache(key: str, count: int) -> dict[str, np.ndarray] | None:
    """The columns that the cache holds under a key; None where they are not there, or not whole."""
    found = read_sealed(_FOLDER, f"{key}.sealed")
    if found is None:
        return None
    # A cache is a file that others may have written: no pickles.
    with np.load(io.BytesIO(found), allow_pickle=False) as stored:
        columns = {name: stored[name] for name in stored.files}
    whole = str(columns.pop(_KEY, "")) == key and all(values.shape == (count,) for values in columns.values())
    return columns if whole and columns else None


def _write_cache(key: str, columns: dict[str, np.ndarray]) -> None:
    content = io.BytesIO()
    members: dict[str, Any] = {**columns, _KEY: np.array(key)}
    np.savez(content, **members)
    try:
        write_sealed(_FOLDER, f"{key}.sealed", content.getvalue())
    except OSError as error:  # the numbers are there; the next run computes them again
        get_logger().warning("cannot keep the reference in the cache: %s", error)
