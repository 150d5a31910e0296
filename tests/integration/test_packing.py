"""Packed and padding-free runs with the real launcher: the same losses whatever the processes and ZeRO stages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import runs_once
from tests.table.tiny import tiny_checkpoint

# 20 conversations of about 32 tokens fill 4 rows: every batch is full, on one process and on two.
PACKING = ("--packing", "True", "--max_length", "176")


@pytest.mark.slow  # tests/matrix has packed rows under each ZeRO stage
@pytest.mark.parametrize("method", ["full", "lora"])
def test_packed_conversations_train_alike(stage_run: Callable, method: str) -> None:
    alone = stage_run("sft", method, "single", PACKING)
    packed = alone.manifest["data"]["train"]["packing"]
    assert packed["strategy"] == "bfd" and packed["packs"] == 4 and packed["documents"] == 20
    assert "attention: hftune_segments" in alone.output
    assert f"packed (bfd) into 4 rows of 176, {100 * packed['fill']:.1f} % full" in alone.output
    assert alone.losses[-1] < alone.losses[0]
    for mode in ("zero2", "zero3"):
        assert stage_run("sft", method, mode, PACKING).losses == pytest.approx(alone.losses, abs=1e-4), mode


@pytest.mark.parametrize("mode", ["single", "zero2"])
def test_without_padding_the_losses_are_those_with(stage_run: Callable, mode: str) -> None:
    padded = stage_run("sft", "full", "single", ("--padding_free", "False"))
    flat = stage_run("sft", "full", mode)
    assert flat.manifest["arguments"]["training"]["padding_free"] is True
    assert flat.losses == pytest.approx(padded.losses, abs=1e-4 if mode == "zero2" else 2e-5)
    name = "eval_loss"
    assert flat.manifest["metrics"][name] == pytest.approx(padded.manifest["metrics"][name], abs=1e-4)


def test_one_step_over_everything_is_the_same_packed(stage_run: Callable) -> None:
    """All conversations in one step, by accumulation: same loss and same held-out loss after it."""
    common = ("--max_length", "176", "--max_steps", "1")
    common = (*common, "--padding_free", "False")
    padded = stage_run("sft", "full", "single", (*common, "--gradient_accumulation_steps", "5"))
    packed = stage_run("sft", "full", "single", (*common, "--packing", "True"))
    assert packed.losses == pytest.approx(padded.losses, abs=1e-5)
    for name in ("eval_loss", "eval_perplexity"):
        assert packed.manifest["metrics"][name] == pytest.approx(padded.manifest["metrics"][name], rel=1e-4)


def test_text_is_packed_by_itself(stage_run: Callable) -> None:
    run = stage_run("pt", "full", "single")
    packed = run.manifest["data"]["train"]["packing"]
    assert packed["strategy"] == "wrapped" and packed["max_length"] == 32
    assert packed["split_documents"] > 0 and packed["fill"] > 0.98
    assert "attention: hftune_segments" in run.output


def test_text_across_documents_is_another_thing(stage_run: Callable) -> None:
    crossing = stage_run("pt", "full", "single", ("--cross_document_attention", "True"))
    assert crossing.losses[0] != pytest.approx(stage_run("pt", "full", "single").losses[0], abs=1e-4)
    assert "attention: hftune_segments" not in crossing.output
    counts = crossing.manifest["data"]["train"]
    assert counts["trained_tokens"] == counts["tokens"] - counts["packing"]["packs"]


@pytest.mark.parametrize("method", ["qlora4"])
def test_quantised_bases(stage_run: Callable, method: str) -> None:
    losses = stage_run("sft", method, "zero2", PACKING).losses
    assert losses[-1] < losses[0]


def test_hybrids_pack_by_themselves(run: Callable, tiny_data: Path, workspace: Path) -> None:
    """Qwen3.5: a state ends with its document, on one process and where two must call each layer as often."""
    model = tiny_checkpoint("qwen3_5_text", workspace / "hybrid" / "model")
    runs = runs_once(functools.partial(run, warm=True), model, tiny_data, workspace / "hybrid")
    short = ("--max_steps", "3", "--packing", "True")
    alone = runs("pt", "lora", "single", short)
    assert "layers with a state end it with each" in alone.output
    sharded = runs("pt", "lora", "zero3", (*short, "--gradient_checkpointing", "True"))
    assert sharded.losses == pytest.approx(alone.losses, abs=1e-4)
