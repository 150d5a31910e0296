"""An adapter that was trained with stretched positions is merged into a base with these."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.unit.merging.models import IDS, load_plain, make_adapter, merge, merged_logits

ROPE: dict[str, Any] = {
    "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "max_position_embeddings": 2048,
}


def test_positions_are_those_of_training(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj", "v_proj"])
    (adapter / "hftune.json").write_text(json.dumps({"stage": "sft", "base": {"name": str(base)}, "rope": ROPE}))
    merge(adapter, tmp_path / "merged", verify="true")
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["rope_parameters"] == ROPE["rope_parameters"] and config["max_position_embeddings"] == 2048
    plain = load_plain(base)
    for name, value in ROPE.items():
        setattr(plain.config, name, value)
    stretched = AutoModelForCausalLM.from_pretrained(base, config=plain.config, dtype=torch.float32)
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(stretched, adapter).eval()(IDS).logits
        unstretched = PeftModel.from_pretrained(load_plain(base), adapter).eval()(IDS).logits
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(wanted, unstretched, atol=1e-3)
