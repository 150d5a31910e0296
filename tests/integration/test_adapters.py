"""Adapters and freezing in real runs: going on, chains, and what changes under ZeRO, tensor by tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

IDS = torch.arange(3, 35)[None]
SAVED = ("--save_strategy", "steps", "--save_steps", "5")


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(iter(sorted(folder.glob("*.safetensors")))))


def resumed_is_uninterrupted(
    stage_run: Callable, workspace: Path, stage: str, method: str, mode: str, extra: tuple[str, ...] = ()
) -> None:
    """Ten steps in one go, and ten with a stop after the fifth: the same losses and weights, bit for bit."""
    whole = stage_run(stage, method, mode, (*SAVED, *extra))
    again = workspace / "runs" / f"{whole.folder.name}-resumed"
    again.mkdir()
    shutil.copytree(whole.folder / "checkpoint-5", again / "checkpoint-5")
    flags = ("--resume_from_checkpoint", "auto", "--output_dir", str(again))
    second = stage_run(stage, method, mode, (*SAVED, *extra, *flags), folder=again)
    assert f"resuming from {again / 'checkpoint-5'}" in second.output
    assert second.losses == whole.losses
    first, then = weights(whole.folder), weights(again)
    assert set(first) == set(then) and all(torch.equal(first[name], then[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage, method, mode, extra",
    [
        ("sft", "lora", "zero3", ()),
        ("sft", "lora", "zero2", ()),
        ("sft", "qlora4", "zero2", ()),
        ("sft", "qlora4", "zero3", ()),
        ("sft", "full", "zero2", ()),
        ("sft", "full", "zero3", ()),
        ("sft", "lora", "single", ()),
        ("sft", "lora", "zero3", ("--lora_modules_to_save", "embed_tokens")),
        ("rm", "lora", "zero3", ()),
    ],
)
def test_every_way_goes_on(
    stage_run: Callable, workspace: Path, stage: str, method: str, mode: str, extra: tuple[str, ...]
) -> None:
    resumed_is_uninterrupted(stage_run, workspace, stage, method, mode, extra)


FROZEN = ("--freeze_parameters_ratio", "0.5", "--trainable_parameters", "lm_head", "--weight_decay", "0.1")


def only_the_trained_changes(folder: Path, base: Path) -> None:
    """The first half of the elements stays bit for bit, but the head that is the embeddings; all of it is saved."""
    before, after = weights(base), weights(folder)
    assert set(before) == set(after)
    named = list(AutoModelForCausalLM.from_pretrained(base).named_parameters())
    half = sum(parameter.numel() for _, parameter in named) // 2
    fits = [name for at, (name, _) in enumerate(named) if sum(p.numel() for _, p in named[: at + 1]) <= half]
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == (set(before) - set(fits)) | {"model.embed_tokens.weight"}
    assert len(fits) > 5


def test_frozen_parameters_stay_under_zero3(stage_run: Callable, tiny_model: Path) -> None:
    result = stage_run("sft", "full", "zero3", (*FROZEN, "--gradient_checkpointing", "True"))
    only_the_trained_changes(result.folder, tiny_model)
    assert 0 < result.manifest["parameters"]["trained"] < result.manifest["parameters"]["all"]
    assert "left as they are: " in result.output


def test_a_chain_under_zero3_is_merged_in_order(
    stage_run: Callable, run: Callable, tiny_model: Path, tmp_path: Path
) -> None:
    """A fresh adapter upon an adapter: trained under ZeRO-3, recorded, and merged by its own folder's name alone."""
    first = stage_run("sft", "lora", "zero2")
    flags = ("--peft_path", str(first.folder), "--create_new_adapter", "--target_modules", "q_proj,v_proj")
    second = stage_run("sft", "lora", "zero3", flags)
    assert second.manifest["base"]["adapters"] == [str(first.folder)]
    assert second.losses[0] < first.losses[0] - 0.1
    paths = ("--peft_model_path", str(second.folder), "--output_dir", str(tmp_path / "m"))
    run("merge_peft_adapter.py", *paths, warm=True).check()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    plain = AutoModelForCausalLM.from_pretrained(tiny_model)
    for folder in (first.folder, second.folder):
        plain = PeftModel.from_pretrained(plain, folder).merge_and_unload()
    torch.testing.assert_close(logits(merged), logits(plain), atol=1e-4, rtol=1e-4)
    manifest = json.loads((tmp_path / "m" / "hftune.json").read_text())
    assert manifest["base"]["name"] == str(tiny_model)
