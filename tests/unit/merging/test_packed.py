"""Adapters on bases in 4 and 8 bit of other makers: merged into whole weights, verified against base + adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from hftune.errors import UserError
from tests.packed import pack
from tests.unit.merging.models import ATTENTION, IDS, load_plain, make_adapter, merge, merged_logits, settings

WIDE = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1, "head_dim": 16}


@pytest.mark.parametrize("kind", ["fp8", pytest.param("int4-zeros", marks=pytest.mark.slow)])
def test_formats(kind: str, make_base: Callable, tmp_path: Path) -> None:
    if kind != "fp8":
        pytest.importorskip("compressed_tensors")
    folder = pack(make_base("llama", **WIDE), tmp_path / kind, kind)
    whole = Path(f"{folder}-whole")
    adapter = make_adapter(whole, tmp_path / "adapter", target_modules=ATTENTION)
    manifest = merge(adapter, tmp_path / "merged", base_model_name_or_path=str(folder))
    assert manifest["merged_by"] == "peft"
    assert "quantization_config" not in settings(tmp_path / "merged")
    merged, base = (load_file(path / "model.safetensors") for path in (tmp_path / "merged", whole))
    assert merged.keys() == base.keys()
    name = "model.layers.0.mlp.up_proj.weight"
    rounded = 1e-6 if kind == "fp8" else 5e-3  # compressed-tensors computes in the dtype of its scales, bfloat16
    torch.testing.assert_close(merged[name], base[name], atol=rounded, rtol=rounded)
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(load_plain(whole), str(adapter)).eval()(IDS).logits
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=100 * rounded, rtol=100 * rounded)


def test_what_transformers_does_not_read_whole(make_base: Callable, tmp_path: Path) -> None:
    folder = pack(make_base("llama", **WIDE), tmp_path / "packed", "fp8")
    adapter = make_adapter(Path(f"{folder}-whole"), tmp_path / "adapter", target_modules=["q_proj"])
    config = (folder / "config.json").read_text().replace('"quant_method": "fp8"', '"quant_method": "awq"')
    (folder / "config.json").write_text(config)
    with pytest.raises(UserError, match="quantised by awq, which cannot be undone"):
        merge(adapter, tmp_path / "merged", base_model_name_or_path=str(folder))
