"""What a process holds where processes share matrices, rows or experts, or compute MLPs in pieces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from hftune.distributed import ranks
from hftune.preflight.estimating.plan import Plan
from tests.architectures import make_config
from tests.conftest import ROOT
from tests.unit.preflight.estimating.test_tracing import planner_of


@pytest.mark.parametrize("stage", [0, 3])
def test_layers_are_shared_and_their_ends_are_not(tmp_path: Path, stage: int) -> None:
    config = make_config("llama")  # embeddings and a head of its own
    ends = 2 * config.vocab_size * config.hidden_size
    weights = {}
    with ranks.planning_for(ranks.PlannedWorld(4, 4, on_cpu=True)):
        for size in (1, 2):
            flags = ("--deepspeed", f"zero{stage}", "--tensor_parallel_size", str(size), "--bf16", "False")
            planner, choice = planner_of(config, tmp_path / str(size), "pt", *flags, tracer=None)
            assert choice.mesh.tensor == size
            plan = planner.plan(choice)
            weights[size] = {one.name: one.parts["weights"] for one in plan.moments}["optimizer"]
            layers = sum(one.numel() for one in planner.bare.parameters()) - ends
    # Float32. ZeRO-3 cuts what a process has over those that have the same: four of them, or two.
    parts = {1: 4, 2: 2} if stage == 3 else {1: 1, 2: 1}
    assert weights[1] == pytest.approx(4 * (ends + layers) / parts[1], rel=1e-3)
    assert weights[2] == pytest.approx(4 * (ends + layers / 2) / parts[2], rel=1e-3)


def parts_of(plan: Plan, moment: str = "optimizer") -> dict[str, float]:
    return next(one.parts for one in plan.moments if one.name == moment)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_experts_are_shared_and_the_rest_is_not(tmp_path: Path, stage: int) -> None:
    """Two of four processes hold all experts together; ZeRO shares experts over two, and all else over four."""
    config = make_config("mixtral")
    with ranks.planning_for(ranks.PlannedWorld(4, 4, on_cpu=True)):
        flags = ("--deepspeed", f"zero{stage}", "--expert_parallel_size", "2", "--bf16", "False")
        planner, choice = planner_of(config, tmp_path, "pt", *flags, tracer=None)
        assert choice.mesh.expert == 2
        found = parts_of(planner.plan(choice))
    every = sum(one.numel() for one in planner.bare.parameters())
    experts = sum(one.numel() for name, one in planner.bare.named_parameters() if ".experts." in name)
    assert experts > 0.1 * every
    others, own = every - experts, experts / 2
    weights = others / 4 + own / 2 if stage == 3 else others + own
    gradients = others / 4 + own / 2 if stage >= 2 else others + own
    assert found["weights"] == pytest.approx(4 * weights, rel=1e-3)
    assert found["gradients"] == pytest.approx(4 * gradients, rel=1e-3)
    # The optimizer's own: a copy and two moments; what it makes while it runs lies beside them.
    assert parts_of(planner.plan(choice), "forward pass")["optimizer"] == pytest.approx(12 * every / 4, rel=1e-3)


SMALL = {"vocab_size": 16384, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
SMALL |= {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 16384}
"""The model of the table in docs/parallel.md."""


def measured() -> dict[str, list[int]]:
    """That table: MiB a process, by its lines."""
    page = (ROOT / "docs" / "parallel.md").read_text(encoding="utf-8")
    table = page.split("<!-- long context: cpu -->")[1].split("<!-- /long context: cpu -->")[0]
    rows = re.findall(r"^(\d process.*?) {3,}([\d, ]+)$", table, re.MULTILINE)
    return {name: [int(one.replace(",", "")) for one in numbers.split()] for name, numbers in rows}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("way", ["plain", "MLP in pieces"])
def test_long_rows_take_what_was_measured(tmp_path: Path, processes: int, way: str) -> None:
    """A step of pre-training on rows of 16,384 tokens; what was held before is not in the table."""
    config = AutoConfig.for_model("llama", tie_word_embeddings=True, **SMALL)
    flags = ["--block_size", "16384", "--per_device_train_batch_size", "1", "--gradient_checkpointing", "True"]
    flags += ["--sequence_parallel_size", str(processes)] if processes > 1 else []
    flags += ["--tiled_mlp", "True"] if way != "plain" else []
    with ranks.planning_for(ranks.PlannedWorld(processes, processes, on_cpu=True)):
        planner, choice = planner_of(config, tmp_path, "pt", *flags)
        plan = planner.plan(choice)
    assert plan.untraced is None
    held = 4 * sum(one.numel() for one in planner.bare.parameters())
    table: dict[str, Any] = measured()
    name = f"{processes} process{'es' * (processes > 1)}, {way}"
    assert (plan.moment.total - held) / 2**20 == pytest.approx(table[name][-1], rel=0.25)
