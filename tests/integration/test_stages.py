"""Every stage, full and LoRA, under ZeRO-2 and ZeRO-3 with 2 processes and alone: same losses, usable results."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from hftune.weight_files import weight_files, weight_shapes

SUPERVISED = ["pt", "sft", "rm", "dpo"]


QUICK = {("pt", "full", "zero3"), ("sft", "lora", "zero3"), ("rm", "full", "zero3"), ("dpo", "lora", "zero3")}
EACH = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in itertools.product(SUPERVISED, ("full", "lora"), ("zero2", "zero3"))
]


@pytest.mark.parametrize("stage, method, mode", EACH)
def test_what_is_saved_is_whole(stage_run: Callable, tiny_model: Path, stage: str, method: str, mode: str) -> None:
    result = stage_run(stage, method, mode)
    shapes = weight_shapes(result.folder)
    assert shapes and all(0 not in shape for shape in shapes.values())
    model = load_result(result.folder, stage, method, tiny_model)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert changed(model, tiny_model), "training changed nothing"


@pytest.mark.parametrize("stage, method, mode", EACH)
def test_manifest_says_where_a_result_came_from(
    stage_run: Callable, tiny_model: Path, stage: str, method: str, mode: str
) -> None:
    manifest = stage_run(stage, method, mode).manifest
    assert manifest["status"] == "complete"
    assert manifest["stage"] == stage
    assert manifest["kind"] == ("adapter" if method == "lora" else "full")
    assert manifest["head"] == ("score" if stage == "rm" else "causal_lm")
    assert manifest["base"]["name"] == str(tiny_model)
    assert manifest["world_size"] == 2
    assert manifest["deepspeed"]["zero_optimization"]["stage"] == int(mode[-1])
    assert manifest["data"]["train"]["used"] > 0
    assert manifest["metrics"]["eval_loss"] > 0
    trained, every = manifest["parameters"]["trained"], manifest["parameters"]["all"]
    assert 0 < trained < every if method == "lora" else trained == every


def test_held_out_pairs_are_scored_by_the_pair(stage_run: Callable) -> None:
    results = {mode: stage_run("rm", "full", mode).manifest["metrics"] for mode in ("single", "zero3")}
    for name in ("eval_accuracy", "eval_margin"):
        assert results["zero3"][name] == pytest.approx(results["single"][name], abs=1e-3)
    assert results["single"]["eval_accuracy"] == 1.0


@pytest.mark.parametrize("mode", [pytest.param("zero1", marks=pytest.mark.slow), "zero3"])
@pytest.mark.parametrize("method", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_a_reference_computed_before_training_is_the_policy_at_first(
    stage_run: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, mode: str
) -> None:
    """In 16 bits, too; and the engine that computed it leaves the one that trains alone."""
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    flags = ("--precompute_ref_log_probs", "True", "--bf16", "True")
    folder = stage_run("dpo", method, mode, flags).folder
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert [history[0][f"rewards/{name}"] for name in ("chosen", "rejected")] == pytest.approx([0, 0], abs=1e-5)
    assert history[0]["loss"] == pytest.approx(0.6931, abs=1e-4)


def test_deepspeed_without_a_launcher(stage_run: Callable) -> None:
    """DDP is in tests/matrix, torchrun itself in `tests/faults/test_interrupts.py`."""
    alone = stage_run("sft", "lora", "single").losses
    assert stage_run("sft", "lora", "single_zero2").losses == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize(
    ("method", "mode"), [("full", "one_zero2"), pytest.param("lora", "zero3", marks=pytest.mark.slow)]
)
def test_a_forked_run_is_the_launched_one(stage_run: Callable, launched_run: Callable, method: str, mode: str) -> None:
    """What other tests start by fork is what a user's launcher starts: the same weights, to the last bit."""
    forked, launched = stage_run("sft", method, mode), launched_run("sft", method, mode)
    assert forked.losses == launched.losses
    for file in weight_files(launched.folder):
        assert (forked.folder / file.name).read_bytes() == file.read_bytes()


def load_result(folder: Path, stage: str, method: str, base: Path) -> torch.nn.Module:
    """As a user would load it, with plain transformers and peft; refuses missing or unexpected weights."""
    auto = AutoModelForSequenceClassification if stage == "rm" else AutoModelForCausalLM
    extra = {"num_labels": 1} if stage == "rm" else {}
    if method == "full":
        model, info = auto.from_pretrained(folder, output_loading_info=True, **extra)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        return model
    return PeftModel.from_pretrained(auto.from_pretrained(base, **extra), folder)


def changed(model: torch.nn.Module, base: Path) -> bool:
    """Whether logits (or hidden states, where a head was added) differ from the base's."""
    start = AutoModelForCausalLM.from_pretrained(base)
    plain = model.get_base_model() if isinstance(model, PeftModel) else model
    ids = torch.arange(3, 19)[None]
    with torch.no_grad():
        return not torch.allclose(start.model(ids)[0], plain.model(ids)[0], atol=1e-4)
