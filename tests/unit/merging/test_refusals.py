"""What cannot be merged is refused before anything is written; what would be wrong never gets into place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hftune.errors import UserError
from hftune.publishing.folder import work_folder
from tests.unit.merging.models import (
    ATTENTION,
    IDS,
    adapted_logits,
    load_plain,
    make_adapter,
    merge,
    merged_logits,
    settings,
)


@pytest.fixture
def base(make_base: Callable) -> Path:
    return make_base("llama")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)


def edit(adapter: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Rewrite an adapter's weights."""
    save_file(change(load_file(adapter / "adapter_model.safetensors")), adapter / "adapter_model.safetensors")


def refused(adapter: Path | str, tmp_path: Path, *words: str, **arguments: object) -> str:
    """Merging fails with all of `words`, and leaves nothing behind."""
    with pytest.raises(UserError) as error:
        merge(adapter, tmp_path / "merged", **arguments)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert not (tmp_path / "merged").exists() and not work_folder(tmp_path / "merged").exists()
    return message


def test_a_merge_that_changes_nothing(adapter: Path, tmp_path: Path) -> None:
    edit(adapter, lambda found: {k: v * 0 if "lora_B" in k else v for k, v in found.items()})
    refused(adapter, tmp_path, "changes nothing")


def test_an_adapter_that_rounding_swallows(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama", dtype=torch.bfloat16)
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)
    edit(adapter, lambda found: {k: v * 1e-9 if "lora_B" in k else v for k, v in found.items()})
    refused(adapter, tmp_path, "changes nothing", "too small for the dtype")


def test_names_that_peft_would_pass_over(adapter: Path, tmp_path: Path) -> None:
    """LF6105: peft warns and goes on where a part of an adapter belongs nowhere."""
    config = settings(adapter, "adapter_config.json") | {"use_something_new": True}  # so that peft merges
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    edit(adapter, lambda found: {k.replace("layers.1.self_attn", "layers.1.attention"): v for k, v in found.items()})
    refused(adapter, tmp_path, "does not fit", "layers.1.attention")


def test_vocabulary_of_another_size(base: Path, tmp_path: Path) -> None:
    """MG322, LF5262: embeddings have grown, the head has not."""
    adapter = make_adapter(base, tmp_path / "a", rows=352, target_modules=ATTENTION, modules_to_save=["embed_tokens"])
    edit(adapter, lambda found: {k: v for k, v in found.items() if "lm_head" not in k})
    refused(adapter, tmp_path, "352 embeddings", f"the head would have {settings(base)['vocab_size']} rows")


# --- what peft has to do ---------------------------------------------------------------------------------------------


def test_other_kinds_of_adapters_go_through_peft(base: Path, tmp_path: Path) -> None:
    from peft import IA3Config, get_peft_model

    config = IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(load_plain(base), config)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.3)
    adapted.save_pretrained(tmp_path / "ia3")
    manifest = merge(tmp_path / "ia3", tmp_path / "merged")
    assert manifest["merged_by"] == "peft"
    assert any("of type IA3" in said for said in manifest["notices"])
    with torch.no_grad():
        torch.testing.assert_close(merged_logits(tmp_path / "merged"), adapted.eval()(IDS).logits, atol=1e-5, rtol=1e-5)


def test_a_base_on_the_hub(base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot(name: str, **options: object) -> str:
        asked.append((name, options["revision"]))
        return str(base)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    config = settings(adapter, "adapter_config.json") | {"base_model_name_or_path": "someone/tiny", "revision": "v2"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    manifest = merge(adapter, tmp_path / "merged")
    assert asked == [("someone/tiny", "v2")] and manifest["base"]["fingerprint"] == "hub:someone/tiny"
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), adapted_logits(base, adapter), atol=1e-5, rtol=1e-5)


def test_bases_that_are_not_there(base: Path, adapter: Path, tmp_path: Path) -> None:
    refused(adapter, tmp_path, "there is no folder ./nowhere", base_model_name_or_path="./nowhere")
    refused(adapter, tmp_path, "there is no folder someone/tiny here", base_model_name_or_path="someone/tiny")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(adapter, tmp_path, "it has no config.json", base_model_name_or_path=str(empty))
    (empty / "config.json").write_bytes((base / "config.json").read_bytes())
    refused(adapter, tmp_path, "no model could be loaded", "model.safetensors", base_model_name_or_path=str(empty))
