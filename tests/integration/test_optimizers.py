"""Every optimizer under every ZeRO stage: the losses of one process, with the same groups, or a refusal.

Many runs share one pair of processes, see `optimizer_cells.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hftune.weight_files import weight_shapes

RATE, FLOOR, STEPS, WARMUP = 1e-3, 1e-4, 4, 1
# Clipping is off, since DeepSpeed and one process clip Muon in different places.
OPTIMIZERS = {"muon": ["--max_grad_norm", "0"]}
MORE_OPTIMIZERS = {
    "adamw_torch": [],
    "adamw_8bit": [],
    "adamw_torch_fused": [],
    "sgd": ["--sgd_momentum", "0.9"],
    "rmsprop": [],
    "lion_32bit": [],
    "lion_8bit": [],
    "ademamix": [],
    "ademamix_8bit": [],
    "rmsprop_bnb": [],
    "rmsprop_bnb_8bit": [],
}
# What ZeRO would change trains under stage 0 only.
STAGE_0_ONLY = {"adafactor": [], "adagrad": []}
# LoRA+ on a full model's layers is nothing, so the groups of an adapter are a cell of their own.
ADAPTER = ["--use_peft", "--lora_rank", "4", "--loraplus_lr_ratio", "16"]
RESUMED = ("loraplus-zero2", "muon-zero3")
LAYERS = ["--layerwise_lr_decay_bound", "0.5"]


@pytest.fixture(scope="session")
def cells(run: Callable, tiny_model: Path, tiny_data: Path, workspace: Path) -> Callable:
    """`cells("zero2", {name: flags})`: results by name, of 2 processes, or of one for "alone"."""

    def train(mode: str, wanted: dict[str, list[str]]) -> dict[str, Any]:
        folder, alone = workspace / "optimizers", mode == "alone"
        folder.mkdir(exist_ok=True)
        asked, result = folder / f"{mode}.json", folder / f"{mode}-result.json"
        shared = ["--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / "pt")]
        shared += ["--block_size", "32", "--per_device_train_batch_size", "4" if alone else "2"]
        shared += ["--gradient_accumulation_steps", "2", "--max_steps", str(STEPS), "--logging_steps", "1"]
        shared += ["--save_strategy", "no", "--gradient_checkpointing", "False", "--report_to", "none"]
        shared += ["--learning_rate", str(RATE), "--weight_decay", "0.1", "--warmup_steps", str(WARMUP)]
        shared += ["--lr_scheduler_type", "cosine", "--min_lr", str(FLOOR), "--overwrite_output_dir"]
        named = {
            name: [*shared, "--output_dir", str(folder / f"{mode}-{name}"), *flags] for name, flags in wanted.items()
        }
        asked.write_text(json.dumps(named))
        launcher = "python" if alone else "forked 2"
        cells = "tests/integration/optimizer_cells.py"
        finished = run(cells, str(asked), str(result), launcher=launcher, warm=True).check()
        return {**json.loads(result.read_text()), "output": finished.output}

    return train


def deepspeed(stage: int, offload: bool = False) -> list[str]:
    """The flag with a config of this stage."""
    zero: dict[str, Any] = {"stage": stage} | ({"offload_optimizer": {"device": "cpu"}} if offload else {})
    names = ("gradient_clipping", "gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu")
    return ["--deepspeed", json.dumps({"zero_optimization": zero, **dict.fromkeys(names, "auto")})]


def all_cells(optimizers: dict[str, list[str]]) -> dict[str, list[str]]:
    """Each optimizer on a full model with layer-wise decay, and AdamW on an adapter with LoRA+ beside it."""
    full = {name: ["--optim", name, *flags, *LAYERS] for name, flags in optimizers.items()}
    return {**full, "loraplus": [*ADAPTER, *LAYERS]}


def with_zero(cells: dict[str, list[str]], *stages: int) -> dict[str, list[str]]:
    """The same cells under each stage."""
    return {f"{name}-zero{stage}": [*flags, *deepspeed(stage)] for stage in stages for name, flags in cells.items()}


def check_same(found: dict[str, Any], alone: dict[str, Any], cell: str) -> None:
    """Losses to 1e-4, and all that the groups are."""
    assert "refused" not in found, (cell, found)
    assert found["losses"] == pytest.approx(alone["losses"], abs=1e-4), cell
    for name in ("elements", "decays", "rates"):
        assert found[name] == alone[name], (cell, name)


@pytest.fixture(scope="session")
def alone(cells: Callable) -> dict[str, Any]:
    return cells("alone", all_cells(OPTIMIZERS))


@pytest.fixture(scope="session")
def zero(cells: Callable, workspace: Path) -> dict[str, Any]:
    """Runs under ZeRO-2 and ZeRO-3; those of `RESUMED` once more, resumed from step 2."""
    asked = with_zero({"loraplus": all_cells({})["loraplus"]}, 2) | with_zero(all_cells(OPTIMIZERS), 3)
    del asked["loraplus-zero3"]
    saves = ["--save_strategy", "steps", "--save_steps", "2"]
    for name in RESUMED:
        checkpoint = str(workspace / "optimizers" / f"zero-{name}" / "checkpoint-2")
        asked[f"{name}-resumed"] = [*asked[name], "--resume_from_checkpoint", checkpoint]
        asked[name] += saves
    return cells("zero", asked)


@pytest.mark.parametrize("cell", RESUMED)
def test_zero_trains_as_one_process_does(alone: dict, zero: dict, cell: str) -> None:
    check_same(zero[cell], alone[cell.partition("-")[0]], cell)


def test_rates_equal_the_closed_form(alone: dict, zero: dict) -> None:
    """Two layers: 0.5 for layer 0, 0.5 + 1/4 * 0.5 for layer 1, B at 16 times that; then warm-up, cosine and floor."""
    shape = [0.0, *((1 + math.cos(math.pi * step / 3)) / 2 for step in range(3))]
    factors = [0.0, *(0.1 + 0.9 * value for value in shape[1:])]
    peaks = sorted(RATE * layer * ratio for layer in (0.5, 0.625) for ratio in (1, 16))
    for found in (alone["loraplus"], zero["loraplus-zero2"]):
        for step, factor in enumerate(factors):
            assert sorted(found["rates"][str(step)]) == pytest.approx([peak * factor for peak in peaks]), step


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_has_the_rates_and_losses_of_an_uninterrupted_one(zero: dict, name: str) -> None:
    whole, resumed = zero[name], zero[f"{name}-resumed"]
    assert resumed["losses"] == pytest.approx(whole["losses"], abs=1e-6)
    assert list(resumed["rates"]) == ["2", "3"]
    for step in ("2", "3"):
        assert resumed["rates"][step] == pytest.approx(whole["rates"][step])


def test_groups_hold_all_parameters_that_are_partitioned(zero: dict, tiny_model: Path) -> None:
    whole = sum(math.prod(shape) for shape in weight_shapes(tiny_model).values())
    assert sum(zero["muon-zero3"]["elements"]) == whole


@pytest.mark.slow
def test_all_optimizers_under_all_stages(cells: Callable) -> None:
    """Each cell equals one process to 1e-4, or is refused for a reason."""
    everywhere = {**OPTIMIZERS, **MORE_OPTIMIZERS}
    single = cells("alone", all_cells({**everywhere, **STAGE_0_ONLY}))
    found = cells("stages", with_zero(all_cells(everywhere), 0, 1, 2, 3) | with_zero(all_cells(STAGE_0_ONLY), 0, 2))
    for cell, result in found.items():
        name, _, stage = cell.partition("-zero")
        if cell == "output":
            continue
        if name in STAGE_0_ONLY and stage != "0":
            assert f"--optim {name} does not go with ZeRO-{stage}" in result["refused"]
        else:
            check_same(result, single[name], cell)


@pytest.mark.slow
def test_offloaded_optimizers(cells: Callable) -> None:
    """AdamW becomes DeepSpeed's for the CPU with the same groups; others run as they are; Muon is refused."""
    names = ["adamw_torch", "sgd", "rmsprop", "lion_32bit", "adamw_8bit", "ademamix", "rmsprop_bnb"]
    names += ["lion_8bit", "ademamix_8bit", "rmsprop_bnb_8bit"]
    asked = {name: ["--optim", name, *LAYERS] for name in names}
    single = cells("alone", asked)
    offloaded = {name: [*flags, *deepspeed(2, offload=True)] for name, flags in asked.items()}
    found = cells("offload", offloaded | {"muon": ["--optim", "muon", "--max_grad_norm", "0", *deepspeed(2, True)]})
    assert "its matrices must be whole" in found["muon"]["refused"]
    assert found["adamw_torch"]["optimizer"] == "DeepSpeedCPUAdam"
    for name in names:
        check_same(found[name], single[name], name)
