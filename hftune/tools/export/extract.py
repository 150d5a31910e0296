"""Extracts the difference of two full models as a LoRA adapter: each matrix's best approximation of rank r, by SVD.

The truncated SVD is the nearest matrix of a given rank (Eckart and Young, 1936).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoConfig

from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.models.loading.from_pretrained import pretrained
from hftune.opening.safetensors_file import load_tensor
from hftune.weight_files import stored_tensors, weight_shapes

EMBEDDINGS = ("embed_tokens", "lm_head", "score")


@dataclass
class Extracted:
    """The extracted adapter, and what it keeps of each difference.

    Attributes:
        adapted: Name of each adapted matrix to the share of its difference (squared Frobenius norm) that is kept.
        whole: Modules that are carried whole.
        lost: Tensors that changed and are not in the adapter.
        tensors: The adapter's tensors under peft's names.
    """

    adapted: dict[str, float] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The figures for the manifest."""
        shares = list(self.adapted.values())
        return {
            "adapted": len(shares),
            "kept_share_mean": sum(shares) / len(shares) if shares else None,
            "kept_share_least": min(shares, default=None),
            "whole": self.whole,
            "lost": self.lost,
        }


def extract_lora(base: Path, tuned: Path, rank: int, *, keep_other_changes: bool = True) -> Extracted:
    """Compare two checkpoints of one architecture, a tensor at a time.

    Args:
        base: Folder of the model that training began with.
        tuned: Folder of the full model that it ended with.
        rank: Rank of every factor pair; alpha equals it, so that the adapter's scale is 1.
        keep_other_changes: Carry embeddings and head whole where they changed.

    Raises:
        ArgumentError: The two have other tensors or shapes, or do not differ.
    """
    _check_alike(base, tuned)
    found = Extracted()
    differing = list(_differences(base, tuned))
    for name, before, after in differing:
        module, _, kind = name.rpartition(".")
        leaf = module.rsplit(".", 1)[-1]
        if kind == "weight" and before.ndim == 2 and leaf not in EMBEDDINGS:
            _factor(found, module, before, after, rank)
        elif keep_other_changes and leaf in EMBEDDINGS:
            found.whole.append(leaf)
            # The name that peft gives to modules_to_save in a file.
            found.tensors[f"base_model.model.{name}"] = after.clone()
        else:
            found.lost.append(name)
    if not found.tensors:
        raise ArgumentError(
            f"{tuned} and {base} do not differ in any matrix",
            place="--base_model_name_or_path",
            fix=f"name the model that {tuned} was trained from, and not {tuned} itself or a copy",
        )
    if found.lost:
        notice(f"{len(found.lost)} tensors changed that a LoRA does not carry: {', '.join(found.lost[:4])}, ...")
    return found


def save_extracted(
    found: Extracted, folder: Path, base: str, rank: int, *, scores: bool, trust_remote_code: bool = False
) -> None:
    """Write the adapter as peft does: `adapter_config.json` and `adapter_model.safetensors`."""
    tied = _is_tied(Path(base), trust_remote_code) and "embed_tokens" in found.whole
    # peft saves the tied head next to the embedding. Cloned: safetensors refuses two tensors of one storage.
    if tied:
        embedding = next(tensor for name, tensor in found.tensors.items() if name.endswith("embed_tokens.weight"))
        found.tensors["base_model.model.lm_head.weight"] = embedding.clone()
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules=sorted(found.adapted),
        modules_to_save=sorted(set(found.whole)) or None,
        ensure_weight_tying=tied,
        task_type="SEQ_CLS" if scores else "CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    save_file(
        {name: tensor.contiguous() for name, tensor in found.tensors.items()}, folder / "adapter_model.safetensors"
    )


def _factor(found: Extracted, module: str, before: torch.Tensor, after: torch.Tensor, rank: int) -> None:
    difference = after.float() - before.float()
    left, singular, right = _svd(difference, rank)
    kept = min(rank, singular.numel())
    # Both factors take half of each singular value: of one size they round alike, and can be trained further.
    root = singular[:kept].sqrt()
    # Padded to the rank where the matrix has less, so that one rank fits all.
    up = torch.zeros(difference.shape[0], rank)
    down = torch.zeros(rank, difference.shape[1])
    up[:, :kept], down[:kept] = left[:, :kept] * root, root[:, None] * right[:kept]
    found.adapted[module] = float(singular[:kept].square().sum() / difference.square().sum())
    found.tensors[f"base_model.model.{module}.lora_A.weight"] = down
    found.tensors[f"base_model.model.{module}.lora_B.weight"] = up


def _svd(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """U, S and V^T of a matrix: exact, or by random projection (arXiv:0909.4061) if that is far cheaper."""
    # The exact SVD grows with the cube of the size; the random one gains nothing once the rank is a quarter of the
    # size.
    if min(matrix.shape) <= max(1024, 4 * rank):
        return torch.linalg.svd(matrix, full_matrices=False)
    with torch.random.fork_rng(devices=[]):
        # Seeded, so that the same models give the same adapter. Twice the rank and four power iterations, because the
        # singular values of a difference fall slowly (section 4.5).
        torch.manual_seed(0)
        left, singular, right = torch.svd_lowrank(matrix, q=2 * rank + 16, niter=4)
    return left, singular, right.T


def _differences(base: Path, tuned: Path) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    there = stored_tensors(base)
    for name, stored in tqdm(stored_tensors(tuned).items(), desc="comparing", unit="tensor", disable=None):
        before, after = load_tensor(there[name].file, name), load_tensor(stored.file, name)
        # In float32: the same values in two dtypes are no difference.
        if not torch.equal(before.float(), after.float()):
            yield name, before, after


def _check_alike(base: Path, tuned: Path) -> None:
    before, after = weight_shapes(base), weight_shapes(tuned)
    problems = [
        ArgumentError(f"{folder} has no safetensors", place=flag, fix="give the folder of a full model")
        for folder, shapes, flag in (
            (base, before, "--base_model_name_or_path"),
            (tuned, after, "--model_name_or_path"),
        )
        if not shapes
    ]
    raise_together(problems)
    other = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if other:
        raise ArgumentError(
            f"the two models are not of one shape: {other[0]} is {before.get(other[0])} and {after.get(other[0])}",
            place="--base_model_name_or_path",
            fix="name the model that the tuned one was trained from; a grown vocabulary cannot be extracted",
        )


def _is_tied(folder: Path, trust_remote_code: bool) -> bool:
    return bool(
        pretrained(AutoConfig, folder, trust_remote_code=trust_remote_code).get_text_config().tie_word_embeddings
    )


def base_of(tuned: Path) -> str | None:
    """The model that a folder was trained from, by its manifest; None without one."""
    return ((read_manifest(tuned) or {}).get("base") or {}).get("name")
