"""Loads what a cell saved as a user would, with plain transformers and peft, and compares logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, BitsAndBytesConfig

from hftune.models.classes import make_reward_models
from tests.table.witness import LOGITS, PROBE

RELOADED = "reloaded.json"
QUANTISED = {
    # As hftune quantises; the head stays whole in 8 bit.
    "nf4": lambda: BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    ),
    "int8": lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["lm_head", "score"]),
}


def run(how: dict[str, Any], folder: Path) -> None:
    """Write `reloaded.json`: keys that were missing or unexpected, and how far logits are from the live model's.

    Args:
        how: "kind" (full or adapter), "head" (score or causal_lm), "model" (the base), "base" (fp32, nf4, int8).
        folder: Of the cell.
    """
    out = folder / "out"
    missing: list[str] = []
    if how["kind"] == "full":
        model, info = load(how, out, output_loading_info=True)
        missing = [str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]]
    else:
        model = PeftModel.from_pretrained(load(how, Path(how["model"])), out)
    live = load_file(folder / LOGITS)["logits"]
    start = logits(load(how, Path(how["model"])))
    found = logits(model)
    (folder / RELOADED).write_text(
        json.dumps(
            {
                "misfits": missing,
                "difference": float((found - live).abs().max()),
                "moved": float((found - start).abs().max()) if how["head"] == "causal_lm" else None,
                "size": float(live.abs().max()),
            }
        ),
        encoding="utf-8",
    )


def load(how: dict[str, Any], folder: Path, **extra: Any) -> Any:
    """A model from a folder, whole or quantised."""
    auto = AutoModelForSequenceClassification if how["head"] == "score" else AutoModelForCausalLM
    if how["head"] == "score":
        extra |= {"num_labels": 1}
        # As hftune loads those of which transformers has no such class (ERNIE 4.5).
        make_reward_models(AutoConfig.from_pretrained(folder))
    if how["base"] in QUANTISED:
        extra |= {"quantization_config": QUANTISED[how["base"]](), "device_map": {"": "cpu"}}
    loaded = auto.from_pretrained(folder, dtype=torch.float32, **extra)
    for module in (loaded[0] if isinstance(loaded, tuple) else loaded).modules():
        if isinstance(module, Linear4bit):
            # Else a CPU with AVX512-BF16 computes in bf16 when a model is in eval mode (bitsandbytes 0.50).
            module.support_avx512bf16_for_cpu = False
    return loaded


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    """Logits on `PROBE`, as the witness took them."""
    return model.eval()(input_ids=PROBE, attention_mask=torch.ones_like(PROBE)).logits.float()
