"""Merging through peft, for what hftune does not know how to fold tensor by tensor: the whole model is in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from hftune.checkpoints.reward_scale import FIELD
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.merging.plan import Plan
from hftune.merging.reference import load_adapter, load_base
from hftune.models.loading.from_pretrained import pretrained


def write_with_peft(plan: Plan, folder: Path, max_shard_size: str | None) -> int:
    """Load, merge in float32, save; returns how many tensors the adapters changed."""
    notice(f"merged by peft, with the whole model in memory: {plan.unknown}")
    model: Any = load_base(plan)
    _forget_quantisation(model)
    before = _digests(model)
    for adapter in plan.adapters:
        model = load_adapter(model, adapter.folder)
        if not hasattr(model, "merge_and_unload"):
            raise ArgumentError(
                f"an adapter of type {adapter.config.get('peft_type')} cannot be merged",
                place="--peft_model_path",
                fix="serve it beside its base, or train a LoRA adapter in its place",
            )
        model = model.merge_and_unload(safe_merge=True)
    after = _digests(model)
    model.config.use_cache = True
    if hasattr(model.config, FIELD):
        delattr(model.config, FIELD)  # another model's
    if plan.reward_scale is not None:
        setattr(model.config, FIELD, plan.reward_scale)
    model.to(_dtype(plan)).save_pretrained(folder, max_shard_size=max_shard_size or "5GB")
    if plan.base.gguf_file and plan.tokenizer == plan.base.folder:
        gguf, trusted = plan.base.gguf_file, plan.trust_remote_code
        tokenizer = pretrained(AutoTokenizer, plan.base.folder, gguf_file=gguf, trust_remote_code=trusted)
        tokenizer.save_pretrained(folder)
    return sum(before.get(name) != digest for name, digest in after.items())


def _dtype(plan: Plan) -> torch.dtype:
    stored = plan.dtype or plan.config.get("dtype") or plan.config.get("torch_dtype") or "float32"
    return getattr(torch, str(stored).removeprefix("torch."))


def _digests(model: Any) -> dict[str, bytes]:
    return {name: _digest(value) for name, value in model.state_dict().items()}


def _digest(value: torch.Tensor) -> bytes:
    array: Any = value.contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(array).digest()


def _forget_quantisation(model: Any) -> None:
    """A base that is stored quantised cannot be merged into."""
    if getattr(model, "quantization_method", None) is not None:
        raise ArgumentError(
            "the base is stored quantised, and peft would fold into its packed weights",
            place="--base_model_name_or_path",
            fix="give the unquantised model that it was made from",
        )
