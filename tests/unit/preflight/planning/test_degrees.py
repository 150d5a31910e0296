"""What a process holds where processes share the matrices of a layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.distributed import ranks
from tests.architectures import make_config
from tests.unit.preflight.planning.test_tracing import planner_of


@pytest.mark.parametrize("stage", [0, 3])
def test_layers_are_shared_and_their_ends_are_not(tmp_path: Path, stage: int) -> None:
    config = make_config("llama")  # embeddings and a head of its own
    ends = 2 * config.vocab_size * config.hidden_size
    weights = {}
    with ranks.imagine(ranks.Imagined(4, 4, on_cpu=True)):
        for size in (1, 2):
            flags = ("--deepspeed", f"zero{stage}", "--tensor_parallel_size", str(size), "--bf16", "False")
            planner, choice = planner_of(config, tmp_path / str(size), "pt", *flags)
            assert choice.degrees.tensor == size
            plan = planner.plan(choice)
            weights[size] = {one.name: one.parts["weights"] for one in plan.moments}["optimizer"]
            layers = sum(one.numel() for one in planner.bare.parameters()) - ends
    # Float32. ZeRO-3 cuts what a process has over those that have the same: four of them, or two.
    parts = {1: 4, 2: 2} if stage == 3 else {1: 1, 2: 1}
    assert weights[1] == pytest.approx(4 * (ends + layers) / parts[1], rel=1e-3)
    assert weights[2] == pytest.approx(4 * (ends + layers / 2) / parts[2], rel=1e-3)
