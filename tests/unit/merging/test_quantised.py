"""Bases in 4 and 8 bit: what training saw, made again tensor by tensor; checkpoints that are stored so, made whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hftune.compat.patches import keep_differentiable
from tests.unit.merging.models import ATTENTION, IDS, make_adapter, merge, merged_logits, settings

CONFIGS = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head", "score"]},
}
# Rows are as long as a block of bitsandbytes and longer, so that a transposed or flat reading would show.
WIDE = {"hidden_size": 64, "intermediate_size": 192}


def quantised(base: Path, kind: str, dtype: torch.dtype = torch.float32) -> Any:
    options = CONFIGS[kind] | ({"bnb_4bit_compute_dtype": dtype} if kind != "int8" else {})
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=dtype, quantization_config=BitsAndBytesConfig(**options), device_map={"": "cpu"}
    )
    keep_differentiable(model)
    return model.eval()


def say_quantised(adapter: Path, base: Path, kind: str, bf16: bool = False) -> None:
    """The manifest that a QLoRA run writes."""
    how = {"bits": 8 if kind == "int8" else 4, "type": kind, "nested": kind == "nf4"}
    arguments = {"training": {"bf16": bf16, "fp16": False}, "model": {"dtype": "auto"}}
    manifest = {"base": {"name": str(base)}, "quantisation": how, "arguments": arguments, "status": "complete"}
    (adapter / "hftune.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("kind", "tied"), [("nf4", True), ("fp4", False)])
def test_dequantised_is_what_training_saw(kind: str, tied: bool, make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama", tie_word_embeddings=tied, **WIDE)
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)
    say_quantised(adapter, base, kind)
    manifest = merge(adapter, tmp_path / "merged", merge_base="dequantized")
    assert manifest["merge_base"] == "dequantized"
    assert any("what that left of the weights" in said for said in manifest["notices"])
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(quantised(base, kind), str(adapter)).eval()(IDS).logits
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-4, rtol=1e-4)
    merge(adapter, tmp_path / "original")
    assert (merged_logits(tmp_path / "original") - wanted).abs().max() > 1e-2


def test_every_dequantised_weight(make_base: Callable, tmp_path: Path) -> None:
    """Bit for bit what bitsandbytes holds after transformers loads the base; also of layers without an adapter."""
    from bitsandbytes.functional import dequantize_4bit

    base = make_base("llama", dtype=torch.bfloat16, **WIDE)
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    say_quantised(adapter, base, "nf4", bf16=True)
    merge(adapter, tmp_path / "merged", merge_base="dequantized")
    merged, model = load_file(tmp_path / "merged" / "model.safetensors"), quantised(base, "nf4", torch.bfloat16)
    seen = 0
    for name, module in model.named_modules():
        if type(module).__name__ == "Linear4bit" and not name.endswith("q_proj"):
            weight = dequantize_4bit(module.weight.data, module.weight.quant_state)
            assert torch.equal(merged[f"{name}.weight"], weight), name
            seen += 1
    assert seen == 2 * 6
    assert torch.equal(merged["lm_head.weight"], model.lm_head.weight)


def test_8_bit(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama", **WIDE)
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)
    say_quantised(adapter, base, "int8")
    merge(adapter, tmp_path / "merged", merge_base="dequantized")
    merged, model = load_file(tmp_path / "merged" / "model.safetensors"), quantised(base, "int8")
    module = model.model.layers[1].mlp.down_proj
    wanted = module.weight.CB.float() * module.weight.SCB[:, None] / 127
    torch.testing.assert_close(merged["model.layers.1.mlp.down_proj.weight"], wanted, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_base_that_is_stored_quantised(kind: str, make_base: Callable, tmp_path: Path) -> None:
    """LF5577: it becomes whole, and the adapter is folded into what it says."""
    base = make_base("llama", **WIDE)
    model = quantised(base, kind)
    model.save_pretrained(tmp_path / "stored")
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(model, str(adapter)).eval()(IDS).logits
    manifest = merge(adapter, tmp_path / "merged", base_model_name_or_path=str(tmp_path / "stored"))
    assert manifest["merged_by"] == "peft" and "quantization_config" not in settings(tmp_path / "merged")
    # In 8 bit the activations were rounded, too.
    near = 1e-4 if kind != "int8" else 0.1
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=near, rtol=near)
