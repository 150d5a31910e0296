"""Quantised bases, experts and drawn weights: ZeRO-1, 2 and 3 on two processes train as one process does."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.architectures import make_model

LORA = ("--use_peft", "--lora_rank", "4")
QUICK = ("nf4", "routers", "drawn")
KINDS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    # name: stage, flags, ZeRO stages that must be right
    "nf4": ("sft", (*LORA, "--load_in_4bit"), (2, 3)),
    "nf4_not_nested": ("sft", (*LORA, "--load_in_4bit", "--use_bnb_nested_quant", "False"), (3,)),
    "fp4": ("sft", (*LORA, "--load_in_4bit", "--bnb_4bit_quant_type", "fp4"), (3,)),
    "nf4_uint8": ("sft", (*LORA, "--load_in_4bit", "--bnb_4bit_quant_storage", "uint8"), (3,)),
    "int8": ("sft", (*LORA, "--load_in_8bit"), (1, 2)),
    "routers": ("sft", ("--router_aux_loss_coef", "0.1", "--moe_z_loss_coef", "0.01"), (2, 3)),
    "drawn": ("pt", ("--from_config",), (2, 3)),
}


@pytest.fixture(scope="module")
def losses(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[int, list[float]]]:
    """Of a kind: losses of four steps, alone (0) and under each of its ZeRO stages on two processes."""
    folder = tmp_path_factory.mktemp("cells")

    @functools.cache
    def train(kind: str) -> dict[int, list[float]]:
        stage, own, stages = KINDS[kind]
        model = make_model("mixtral", folder / "mixtral") if kind == "routers" else tiny_model
        paths = {"model": str(model), "data": str(tiny_data)}

        def cell(zero: int, *flags: str) -> dict[str, Any]:
            output = {"name": str(zero), "output": str(folder / f"{kind}-{zero}")}
            return {"stage": stage, **paths, **output, "flags": [*own, *flags]}

        # As many rows a step, split alike: two processes, or two micro batches one after the other.
        alone = [cell(0, "--gradient_accumulation_steps", "2")]
        shared = [cell(zero, "--deepspeed", f"ds_configs/zero{zero}.json") for zero in stages]
        found: dict[int, list[float]] = {}
        for launcher, cells in (("python", alone), ("forked 2", shared)):
            (folder / "CELLS.json").write_text(json.dumps(cells))
            run("tests/parity/loading_cells.py", str(folder / "CELLS.json"), launcher=launcher, warm=True).check()
            results = json.loads((folder / "RESULT.json").read_text())
            found |= {int(zero): each for zero, each in results.items()}
        return found

    return train


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind not in QUICK]


@pytest.mark.parametrize("kind", [*QUICK, *SLOW])
def test_two_processes_train_as_one(losses: Callable[[str], dict[int, list[float]]], kind: str) -> None:
    alone, *shared = losses(kind).values()
    assert len(alone) == 4
    for found in shared:
        assert found == pytest.approx(alone, abs=1e-4)
