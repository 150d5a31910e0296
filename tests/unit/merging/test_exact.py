"""Every merged weight is the maths in float32, rounded once; files are the base's; the same bytes each time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from hftune.errors import UserError
from hftune.weight_files import fingerprint
from tests.unit.merging.models import IDS, adapted_logits, load_plain, make_adapter, merge, merged_logits, settings


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def by_hand(base: Path, adapter: Path, scale: float, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """fp32 W + scale * (B A), rounded once; everything else as it is, in the dtype asked for."""
    low_rank, merged = weights(adapter), weights(base)
    for name, tensor in merged.items():
        a = low_rank.get(f"base_model.model.{name.removesuffix('.weight')}.lora_A.weight")
        if a is not None:
            b = low_rank[f"base_model.model.{name.removesuffix('.weight')}.lora_B.weight"]
            merged[name] = (tensor.float() + scale * (b.float() @ a.float())).to(dtype or tensor.dtype)
        elif dtype:
            merged[name] = tensor.to(dtype)
    return merged


@pytest.mark.parametrize(
    ("dtype", "asked"),
    [
        (torch.float32, None), (torch.bfloat16, None), (torch.float16, torch.float32), (torch.float32, torch.bfloat16)
    ],
    ids=str,
)  # fmt: skip
def test_weights_bit_for_bit(
    dtype: torch.dtype, asked: torch.dtype | None, make_base: Callable, tmp_path: Path
) -> None:
    base = make_base("llama", dtype=dtype, shard="60KB")
    adapter = make_adapter(base, tmp_path / "adapter", target_modules="all-linear")
    name = str(asked).removeprefix("torch.") if asked else "auto"
    merge(adapter, tmp_path / "merged", dtype=name)
    wanted, found = by_hand(base, adapter, 6 / 4, asked), weights(tmp_path / "merged")
    assert wanted.keys() == found.keys()
    for key in wanted:
        assert found[key].dtype == wanted[key].dtype and torch.equal(found[key], wanted[key]), key
    # In float32 the merged model says what base + adapter say; in 16 bit, up to rounding of the weights.
    if (asked or dtype) == torch.float32 == dtype:
        torch.testing.assert_close(
            merged_logits(tmp_path / "merged"), adapted_logits(base, adapter), atol=1e-5, rtol=1e-5
        )
    assert settings(tmp_path / "merged")["dtype"] == str(asked or dtype).removeprefix("torch.")


def test_same_bytes_twice_and_the_base_s_files(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama", shard="60KB")
    adapter = make_adapter(base, tmp_path / "adapter", target_modules="all-linear")
    for name in ("one", "two"):
        merge(adapter, tmp_path / name)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    named = {file.name for file in base.iterdir()}
    assert {file.name for file in (tmp_path / "one").iterdir()} == named | {"hftune.json"}
    assert settings(tmp_path / "one", _INDEX)["weight_map"] == settings(base, _INDEX)["weight_map"]
    kept = [name for name in named if not name.endswith((".safetensors", ".index.json"))]
    for name in kept:
        old, new = ((folder / name).read_text() for folder in (base, tmp_path / "one"))
        assert json.loads(old) == json.loads(new) if name.endswith(".json") else old == new


_INDEX = "model.safetensors.index.json"


def digests(folder: Path) -> dict[str, str]:
    """Of everything but the manifest, which has a wall time."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name != "hftune.json"
    }


def test_several_adapters_with_weights(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    one = make_adapter(base, tmp_path / "one", target_modules=["q_proj", "down_proj"])
    two = make_adapter(base, tmp_path / "two", target_modules=["q_proj"], r=2, seed=1)
    merge(f"{one},{two}", tmp_path / "merged", adapter_weights="0.25,2")
    w, merged = weights(base), weights(tmp_path / "merged")
    deltas = [by_hand(base, one, 6 / 4), by_hand(base, two, 6 / 2)]
    for name, tensor in w.items():
        wanted = tensor + 0.25 * (deltas[0][name] - tensor) + 2 * (deltas[1][name] - tensor)
        torch.testing.assert_close(merged[name], wanted, atol=1e-6, rtol=1e-6)
    merge(f"{one},{two}", tmp_path / "sum")
    torch.testing.assert_close(merged_logits(tmp_path / "sum"), adapted_logits(base, one, two), atol=1e-5, rtol=1e-5)


def test_a_chain_is_merged_in_its_order(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    first = make_adapter(base, tmp_path / "first", target_modules=["q_proj"], modules_to_save=["model.norm"])
    merge(first, tmp_path / "merged-first")
    second = make_adapter(tmp_path / "merged-first", tmp_path / "second", target_modules=["q_proj"], use_dora=True)
    manifest = {"base": {"name": str(base), "adapters": [str(first)]}, "status": "complete"}
    manifest["parents"] = [{"folder": str(first), "fingerprint": fingerprint(first)}]
    (second / "hftune.json").write_text(json.dumps(manifest))
    found = merge(second, tmp_path / "merged")
    adapted = PeftModel.from_pretrained(load_plain(tmp_path / "merged-first"), str(second)).eval()
    with torch.no_grad():
        torch.testing.assert_close(merged_logits(tmp_path / "merged"), adapted(IDS).logits, atol=1e-5, rtol=1e-5)
    assert [parent["folder"] for parent in found["parents"]] == [str(first), str(second)]
    make_adapter(base, first, target_modules=["q_proj"], modules_to_save=["model.norm"], seed=9)
    with pytest.raises(UserError, match="was trained on the base"):
        merge(second, tmp_path / "again")
