"""Compares the logits of an exported model with those of the model that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from hftune.errors import UserError
from hftune.models.loading.from_pretrained import pretrained

# Two scripts and code, with brackets and a line break: wrong cuts, merges or row orders show in one of them.
TEXTS = ("Who are you?", "The capital of France is", "为什么天空是蓝色的？", "def add(a, b):\n    return")
# Of the logits' standard deviation.
LARGEST_DIFFERENCE = {"float32": 0.01, "bfloat16": 0.06}


def load(folder: Path, trust_remote_code: bool = False, **options: Any) -> PreTrainedModel:
    """A causal LM in float32, ready to answer."""
    # Float32, so that the difference is the export's and not that of rounding here.
    options = {"dtype": torch.float32} | options
    return pretrained(AutoModelForCausalLM, folder, trust_remote_code=trust_remote_code, **options).eval()


def compare(folder: Path, result: Path, trust_remote_code: bool = False) -> dict[str, float]:
    """The difference of two folders' logits; the second is loaded in the dtype that it is stored in."""
    before = logits_of(load(folder, trust_remote_code), folder, trust_remote_code)
    return distance(before, logits_of(load(result, trust_remote_code, dtype="auto"), folder, trust_remote_code))


def logits_of(model: Any, tokenizer_folder: Path, trust_remote_code: bool = False) -> list[torch.Tensor]:
    """Float32 logits of every position of `TEXTS`, (length, rows) each."""
    tokenizer = pretrained(AutoTokenizer, tokenizer_folder, trust_remote_code=trust_remote_code)
    with torch.no_grad():
        ids = [torch.tensor([tokenizer(text).input_ids], device=model.device) for text in TEXTS]
        logits = [model(input_ids=row).logits[0].float().cpu() for row in ids]
    # Of NaN the likeliest token is always the first, and no distance is too large.
    if any(row.isnan().any() for row in logits):
        cause = f"{model.config.name_or_path or tokenizer_folder} gives logits that are NaN"
        raise UserError(cause, place="--verify", fix="take a checkpoint from before its weights broke")
    return logits


def distance(before: list[torch.Tensor], after: list[torch.Tensor]) -> dict[str, float]:
    """Figures of the difference of logits: largest, mean, mean in standard deviations, share of equal choices."""
    pairs = list(zip(before, after, strict=True))
    differences = torch.cat([(a - b).abs().flatten() for a, b in pairs])
    same = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs])
    return {
        "logits_largest_difference": float(differences.max()),
        "logits_mean_difference": float(differences.mean()),
        # In units of the logits' spread, which differs from model to model.
        "logits_relative_difference": float(differences.mean() / torch.cat([a.flatten() for a in before]).std()),
        "same_choice": float(same.float().mean()),
    }


def check_distance(figures: dict[str, Any], kind: str) -> None:
    """Raise if a result is too far from its model.

    Args:
        figures: With `logits_relative_difference`, where the result was read back.
        kind: A key of `LARGEST_DIFFERENCE`; coarser types lose what they lose, and only say so.

    Raises:
        UserError: The result says something else than the model.
    """
    relative, largest = figures.get("logits_relative_difference"), LARGEST_DIFFERENCE.get(kind)
    if relative is not None and largest is not None and relative > largest:
        raise UserError(
            f"the {kind} result does not say what the model says: its logits are off by {relative:.2f} of their spread",
            place="--verify",
            fix="report it with the model's config.json; nothing was written",
        )
