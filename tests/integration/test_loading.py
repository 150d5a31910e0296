"""Quantised bases, experts and drawn weights: ZeRO-1, 2 and 3 on two processes train as one process does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.architectures import make_model

LORA = ("--use_peft", "--lora_rank", "4")
KINDS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    # name: stage, flags, ZeRO stages that must be right
    "nf4": ("sft", (*LORA, "--load_in_4bit"), (1, 2, 3)),
    "nf4_not_nested": ("sft", (*LORA, "--load_in_4bit", "--use_bnb_nested_quant", "False"), (3,)),
    "fp4": ("sft", (*LORA, "--load_in_4bit", "--bnb_4bit_quant_type", "fp4"), (3,)),
    "nf4_uint8": ("sft", (*LORA, "--load_in_4bit", "--bnb_4bit_quant_storage", "uint8"), (3,)),
    "int8": ("sft", (*LORA, "--load_in_8bit"), (1, 2)),
    "routers": ("sft", ("--router_aux_loss_coef", "0.1", "--moe_z_loss_coef", "0.01"), (2, 3)),
    "drawn": ("pt", ("--from_config",), (2, 3)),
}


@pytest.fixture(scope="module")
def results(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[float]]:
    """Losses of four steps: of each kind alone, and under each of its ZeRO stages on two processes."""

    folder = tmp_path_factory.mktemp("cells")
    models = {name: tiny_model for name in KINDS}
    models["routers"] = make_model("mixtral", folder / "mixtral")

    def cell(kind: str, zero: int, *flags: str) -> dict[str, Any]:
        stage, own, _ = KINDS[kind]
        name = f"{kind}-{zero}"
        paths = {"model": str(models[kind]), "data": str(tiny_data), "output": str(folder / name)}
        return {"name": name, "stage": stage, **paths, "flags": [*own, *flags]}

    # As many rows a step, split alike: two processes, or two micro batches one after the other.
    alone = [cell(kind, 0, "--gradient_accumulation_steps", "2") for kind in KINDS]
    shared = [
        cell(kind, zero, "--deepspeed", f"ds_configs/zero{zero}.json")
        for kind, (_, _, stages) in KINDS.items()
        for zero in stages
    ]
    found: dict[str, list[float]] = {}
    for processes, cells in ((1, alone), (2, shared)):
        (folder / "CELLS.json").write_text(json.dumps(cells))
        launcher = "python" if processes == 1 else f"forked {processes}"
        run("tests/parity/loading_cells.py", str(folder / "CELLS.json"), launcher=launcher, warm=True).check()
        found |= json.loads((folder / "RESULT.json").read_text())
    return found


@pytest.mark.parametrize(("kind", "zero"), [(kind, zero) for kind, (_, _, stages) in KINDS.items() for zero in stages])
def test_two_processes_train_as_one(results: dict[str, list[float]], kind: str, zero: int) -> None:
    assert len(results[f"{kind}-0"]) == 4
    assert results[f"{kind}-{zero}"] == pytest.approx(results[f"{kind}-0"], abs=1e-4)


def test_quantising_changes_something(results: dict[str, list[float]]) -> None:
    firsts = [results[f"{kind}-0"][0] for kind in ("nf4", "nf4_not_nested", "fp4", "int8")]
    assert len(set(firsts)) == 4
