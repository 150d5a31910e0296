"""Packed and padding-free runs with the real launcher: the same losses whatever the processes and ZeRO stages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import runs_once
from tests.table.tiny import tiny_checkpoint


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


def test_hybrids_pack_by_themselves(run: Callable, tiny_data: Path, workspace: Path) -> None:
    """Qwen3.5: a state ends with its document, on one process and where two must call each layer as often."""
    model = tiny_checkpoint("qwen3_5_text", workspace / "hybrid" / "model")
    runs = runs_once(functools.partial(run, warm=True), model, tiny_data, workspace / "hybrid")
    short = ("--max_steps", "3", "--packing", "True")
    alone = runs("pt", "lora", "single", short)
    assert "layers with a state end it with each" in alone.output
    sharded = runs("pt", "lora", "zero3", (*short, "--gradient_checkpointing", "True"))
    assert sharded.losses == pytest.approx(alone.losses, abs=1e-4)
