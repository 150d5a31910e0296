"""Adapters that begin with a part of the base (PiSSA arXiv:2404.02948, OLoRA arXiv:2406.01775) and fit the whole one.

Such an adapter begins as factors A0 (r, in) and B0 (out, r) of the weight W, and the base in memory becomes
W - s B0 A0, with s the scale of LoRA. What training changes is s (B A - B0 A0), and that is a plain LoRA of rank 2 r
with the factors [A; A0] and [B, -B0]: this is what is saved, in checkpoints as well, so that continuing, merging and
any other program find an adapter of the unchanged base. peft can convert when it saves, but loses modules saved with
the factors (peft 0.21), and would need a folder of its own for the beginning.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file

from hftune.errors import ArgumentError
from hftune.opening.model_files import read_checked
from hftune.opening.safetensors_file import load_tensors

Tensors = dict[str, torch.Tensor]
_ROWS, _COLUMNS = (".lora_A.", ".lora_embedding_A"), (".lora_B.", ".lora_embedding_B")


def keep_initial_factors(model: PeftModel) -> None:
    """Keep the factors that a fresh adapter begins with, on the CPU; its config becomes that of a plain LoRA."""
    factors = {name: tensor for name, tensor in get_peft_model_state_dict(model).items() if _rank_dim(name) is not None}
    model.hftune_initial_factors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in factors.items()}
    # A second adapter of the same config (the reference of DPO) must not take the same part out of the base again.
    model.peft_config["default"].init_lora_weights = True


def initial_factors(model: object) -> Tensors:
    """The factors that `keep_initial_factors` kept; empty for an adapter that changes nothing at first."""
    return getattr(model, "hftune_initial_factors", {})


def as_plain_lora(trained: Tensors, start: Tensors) -> Tensors:
    """[A; A0] and [B, -B0] for each pair; other tensors as they are."""
    plain = dict(trained)
    for name, first in start.items():
        dim = _rank_dim(name)
        assert dim is not None
        half = first.to(trained[name].dtype)
        plain[name] = torch.cat([trained[name].cpu(), half if dim == 0 else -half], dim=dim).contiguous()
    return plain


def split_plain_lora(plain: Tensors) -> tuple[Tensors, Tensors]:
    """The inverse of `as_plain_lora`: the trained tensors, and the factors that they began with."""
    trained, start = dict(plain), {}
    for name, tensor in plain.items():
        dim = _rank_dim(name)
        if dim is not None:
            first, second = tensor.chunk(2, dim=dim)
            trained[name], start[name] = first.contiguous(), second.contiguous() if dim == 0 else -second
    return trained, start


def rewrite_as_plain(model: PeftModel, folder: str | Path) -> None:
    """Rewrite the adapter that peft has just saved in `folder` as one of the unchanged base; one process calls it."""
    start = initial_factors(model)
    for name, config in model.peft_config.items() if start else ():
        place = Path(folder) if name == "default" else Path(folder) / name
        weights = place / "adapter_model.safetensors"
        trained = load_tensors(weights)
        if name != "default" and not start.keys() <= trained.keys():
            # A copy for reference, which peft (0.21) misnames under ZeRO-3 and which nobody reads.
            continue
        aside = weights.with_suffix(".partial")
        save_file(as_plain_lora(trained, start), aside, metadata={"format": "pt"})
        os.replace(aside, weights)
        file = place / "adapter_config.json"
        values = read_checked(file)
        # The rank doubles; the scale alpha / r, or alpha / sqrt(r) for rsLoRA, must stay what it was.
        factor = 2**0.5 if config.use_rslora else 2
        values |= {"r": 2 * values["r"], "lora_alpha": factor * values["lora_alpha"], "init_lora_weights": True}
        values["rank_pattern"] = {key: 2 * rank for key, rank in (values["rank_pattern"] or {}).items()}
        values["alpha_pattern"] = {key: factor * alpha for key, alpha in (values["alpha_pattern"] or {}).items()}
        file.write_text(json.dumps(values, indent=2, sort_keys=True), encoding="utf-8")


def load_plain_lora(model: PeftModel, folder: str | Path) -> None:
    """Put what `rewrite_as_plain` wrote back into the adapter in training."""
    trained, _ = split_plain_lora(load_tensors(Path(folder) / "adapter_model.safetensors"))
    set_peft_model_state_dict(model, trained, adapter_name="default")


def check_same_initialisation(model: PeftModel, folder: str | Path) -> None:
    """Check that a resumed run took the same part out of the base as the run that wrote the checkpoint.

    Raises:
        ArgumentError: It has not: another seed, device or torch gave fast SVD another result, or it is another base.
    """
    file = Path(folder) / "adapter_model.safetensors"
    if not initial_factors(model) or not file.is_file():
        return
    _, then = split_plain_lora(load_tensors(file))
    for name, now in initial_factors(model).items():
        other = name.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B")
        if other == name:
            continue
        taken, before = initial_factors(model)[other].float() @ now.float(), then[other].float() @ then[name].float()
        # Products are compared, not factors: an SVD may flip the signs of both. 1% is far above rounding, far below
        # what another matrix or another seed gives.
        if (taken - before).norm() > 0.01 * before.norm():
            raise ArgumentError(
                f"the adapter begins differently than in {folder} ({name})",
                place="--resume_from_checkpoint",
                fix="use the same base, --seed, --init_lora_weights and kind of device as the run that wrote it",
            )


def _rank_dim(name: str) -> int | None:
    """The dimension of a saved tensor that counts the rank."""
    if any(part in name for part in _ROWS):
        return 0
    return 1 if any(part in name for part in _COLUMNS) else None
