"""Merging: the merged model says what base + adapter says, and carries its tokenizer, template and head along."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from hftune.weight_files import weight_shapes

IDS = torch.arange(3, 35)[None]


@pytest.fixture(scope="session")
def merge(run: Callable, workspace: Path) -> Callable[..., Path]:
    def once(adapter: Path, *flags: str) -> Path:
        output = workspace / "merged" / adapter.name
        if not output.exists():
            paths = ("--peft_model_path", str(adapter), "--output_dir", str(output))
            run("merge_peft_adapter.py", *paths, *flags, warm=True).check()
        return output

    return once


def test_causal_lm(stage_run: Callable, merge: Callable, tiny_model: Path) -> None:
    adapter = stage_run("sft", "lora", "zero3").folder
    merged_folder = merge(adapter)
    merged, info = AutoModelForCausalLM.from_pretrained(merged_folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), adapter)
    with torch.no_grad():
        torch.testing.assert_close(merged(IDS).logits, adapted(IDS).logits, atol=5e-5, rtol=1e-4)
    greedy = {"max_new_tokens": 12, "do_sample": False}
    assert merged.generate(IDS, **greedy).tolist() == adapted.generate(input_ids=IDS, **greedy).tolist()


@pytest.mark.parametrize("method, mode", [("lora", "zero3"), pytest.param("qlora4", "zero3", marks=pytest.mark.slow)])
def test_score_head(stage_run: Callable, merge: Callable, tiny_model: Path, method: str, mode: str) -> None:
    """Head and scale of two processes, bit for bit, once merged and loaded again."""
    trained = stage_run("rm", method, mode)
    adapter = trained.folder
    merged_folder = merge(adapter)
    merged, info = AutoModelForSequenceClassification.from_pretrained(merged_folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    base = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
    adapted = PeftModel.from_pretrained(base, adapter)
    head = adapted.get_base_model().score.modules_to_save["default"].weight
    assert torch.equal(merged.score.weight, head)
    scale = trained.manifest["reward_scale"]
    assert scale["std"] > 0 and scale["scores"] == 8
    assert (
        merged.config.reward_scale == scale == json.loads((merged_folder / "hftune.json").read_text())["reward_scale"]
    )
    with torch.no_grad():
        torch.testing.assert_close(merged(IDS).logits, adapted(IDS).logits, atol=1e-5, rtol=1e-5)


def test_folder_has_all_that_a_user_needs(stage_run: Callable, merge: Callable, tiny_model: Path) -> None:
    folder = merge(stage_run("sft", "lora", "zero3").folder)
    assert (
        AutoTokenizer.from_pretrained(folder).chat_template == AutoTokenizer.from_pretrained(tiny_model).chat_template
    )
    assert weight_shapes(folder) == weight_shapes(tiny_model)
    manifest = json.loads((folder / "hftune.json").read_text())
    assert manifest["status"] == "complete" and manifest["stage"] == "merge" and manifest["merged_stage"] == "sft"
    assert manifest["verified"]["largest"] < 1e-4
    files = {file.name for file in folder.iterdir()}
    assert files == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "hftune.json",
    }


def test_qlora_into_both_bases(stage_run: Callable, run: Callable, tiny_model: Path, tmp_path: Path) -> None:
    adapter = stage_run("sft", "qlora4", "single").folder
    flags = ["--peft_model_path", str(adapter), "--output_dir"]
    original = run("merge_peft_adapter.py", *flags, str(tmp_path / "original"), warm=True).check()
    assert "verified against what training computed" in original.output
    dequantized = tmp_path / "dequantized"
    run("merge_peft_adapter.py", *flags, str(dequantized), "--merge_base", "dequantized", warm=True).check()
    manifests = [json.loads((tmp_path / name / "hftune.json").read_text()) for name in ("original", "dequantized")]
    assert [manifest["merge_base"] for manifest in manifests] == ["original", "dequantized"]
    assert manifests[1]["verified"]["largest"] < 0.1 * manifests[0]["verified"]["largest"]
    assert weight_shapes(dequantized) == weight_shapes(tiny_model)
