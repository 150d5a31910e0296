"""Adapters on bases in 4 and 8 bit of other makers: merged into whole weights, verified against base + adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from hftune.errors import UserError
from tests.packed import pack
from tests.unit.merging.models import ATTENTION, IDS, load_plain, make_adapter, merge, merged_logits, settings

WIDE = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1}


@pytest.mark.parametrize("kind", ["fp8", "int4-zeros", "nvfp4", "gptq", "awq"])
def test_formats(kind: str, make_base: Callable, tmp_path: Path) -> None:
    folder = pack(make_base("llama", **WIDE), tmp_path / kind, kind)
    whole = Path(f"{folder}-whole")
    adapter = make_adapter(whole, tmp_path / "adapter", target_modules=ATTENTION)
    manifest = merge(adapter, tmp_path / "merged", base_model_name_or_path=str(folder))
    assert manifest["merged_by"] == "hftune"
    assert "quantization_config" not in settings(tmp_path / "merged")
    merged, base = (load_file(path / "model.safetensors") for path in (tmp_path / "merged", whole))
    assert merged.keys() == base.keys()
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(merged[name], base[name], atol=1e-7, rtol=1e-6)
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(load_plain(whole), str(adapter)).eval()(IDS).logits
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-4, rtol=1e-4)


def test_experts(make_base: Callable, tmp_path: Path) -> None:
    """An adapter of fused parameters, on experts that are packed one by one."""
    folder = pack(make_base("qwen3_moe", hidden_size=64, moe_intermediate_size=32), tmp_path / "packed", "int4")
    whole = Path(f"{folder}-whole")
    adapter = make_adapter(whole, tmp_path / "adapter", target_parameters=["mlp.experts.gate_up_proj"])
    merge(adapter, tmp_path / "merged", base_model_name_or_path=str(folder), verify="true")
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(load_plain(whole), str(adapter)).eval()(IDS).logits
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-4, rtol=1e-4)


def test_merged_by_peft(make_base: Callable, tmp_path: Path) -> None:
    """What hftune does not fold itself."""
    folder = pack(make_base("llama", **WIDE), tmp_path / "packed", "gptq")
    whole = Path(f"{folder}-whole")
    adapter = make_adapter(whole, tmp_path / "adapter", target_modules=["q_proj"])
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"use_something_new": True}))
    manifest = merge(adapter, tmp_path / "merged", base_model_name_or_path=str(folder))
    assert manifest["merged_by"] == "peft" and "quantization_config" not in settings(tmp_path / "merged")
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(load_plain(whole), str(adapter)).eval()(IDS).logits
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-4, rtol=1e-4)


def test_a_layout_that_is_not_known(make_base: Callable, tmp_path: Path) -> None:
    folder = pack(make_base("llama", **WIDE), tmp_path / "packed", "awq")
    adapter = make_adapter(Path(f"{folder}-whole"), tmp_path / "adapter", target_modules=["q_proj"])
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["version"] = "gemv"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="layout gemv"):
        merge(adapter, tmp_path / "merged", base_model_name_or_path=str(folder))
