"""The reference of preference optimisation: an adapter switched off, a copy of it, or a second model."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from safetensors.torch import save_file
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from hftune.distributed import ranks, zero
from hftune.errors import ArgumentError
from hftune.logging import get_logger
from hftune.opening.safetensors_file import load_tensors
from hftune.trainers.features.run import plain_model
from hftune.user_cache import read_sealed, write_sealed

_KEY = "key"
"""Member of a kept reference that says what it belongs to: a file may have been given another name."""
RENEWED_NAME = "reference.safetensors"
"""In a checkpoint, the reference as it was renewed."""

COPY = "ref"
"""The name of an adapter that is a copy of the trained one as it was."""

_FOLDER = "reference"
"""Of the cache."""

_NOT_WEIGHTS = ("_name_or_path", "transformers_version", "use_cache", "_attn_implementation")

Columns = dict[str, torch.Tensor]


def add_copy(model: PeftModel) -> None:
    """A frozen copy of the trained adapter next to it, as the reference of one that does not start as the base."""
    model.add_adapter(COPY, model.peft_config["default"])
    for target, source in adapter_parameters(model):
        with zero.gathered([target, source], write=True):
            target.data.copy_(source.data)
        target.requires_grad_(False)


def adapter_parameters(model: PeftModel) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Each parameter of the copy, and the trained one that it is a copy of."""
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if f".{COPY}." in name:
            yield parameter, named[name.replace(f".{COPY}.", ".default.")]


@contextmanager
def as_reference_model(model: nn.Module, args: Any, *, adapter_off: bool = True) -> Iterator[None]:
    """Run a model as its own reference: without gradients and dropout.

    Args:
        adapter_off: Without the trained adapter, or with its copy where there is one; else as it is.
    """
    was_training = model.training
    adapter: Any = nullcontext()
    if isinstance(model, PeftModel) and adapter_off:
        adapter = use_adapter(model, COPY if COPY in model.peft_config else None)
    # Nothing is recomputed without gradients, and reentrant checkpointing would warn in each pass.
    checkpointing = disable_gradient_checkpointing(model, args.gradient_checkpointing_kwargs)
    with torch.no_grad(), checkpointing, adapter:
        model.eval()
        try:
            yield
        finally:
            model.train(was_training)


class RenewReference(TrainerCallback):
    """Every so many steps: reference = alpha * policy + (1 - alpha) * reference (TR-DPO, arXiv:2404.09656).

    Args:
        pairs: Gives each parameter of the reference with that of the policy.
    """

    def __init__(self, pairs: Callable[[], Iterator[tuple[nn.Parameter, nn.Parameter]]], alpha: float) -> None:
        self.pairs, self.alpha = pairs, alpha

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Renew it where the step asks for it."""
        if state.global_step % args.ref_model_sync_steps == 0:
            self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """One parameter at a time, so that ZeRO-3 gathers one at a time."""
        for target, source in self.pairs():
            with zero.gathered([target, source], write=True):
                # In the reference's dtype, which may be another than the policy's.
                target.data.mul_(1 - self.alpha).add_(source.data.to(target.dtype), alpha=self.alpha)


def save_parameters(file: Path, parameters: Iterable[nn.Parameter]) -> None:
    """Write the full values of parameters, by their order; every rank must call it, the main one writes."""
    found = {}
    for number, parameter in enumerate(parameters):
        with zero.gathered([parameter]):
            if ranks.is_main():
                # By number: names of an adapter's copy, of a second model and of the policy differ.
                found[str(number)] = parameter.detach().cpu().clone()
    if ranks.is_main():
        save_file(found, file)


@torch.no_grad()
def load_parameters(file: Path, parameters: Iterable[nn.Parameter]) -> None:
    """The inverse of `save_parameters`.

    Raises:
        ArgumentError: The checkpoint has no such file.
    """
    if not file.is_file():
        raise ArgumentError(
            f"{file.parent} has no {file.name}: its reference was not renewed in training",
            place="--resume_from_checkpoint",
            fix="resume as it was begun, without --sync_ref_model",
        )
    found = load_tensors(file)
    for number, parameter in enumerate(parameters):
        with zero.gathered([parameter], write=True):
            parameter.data.copy_(found[str(number)])


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
