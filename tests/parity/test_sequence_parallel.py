"""Two processes that share the tokens of rows (Ulysses) against one that has them all: the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STEPS = 20
TOLERANCE = 1e-4
"""Of the losses and of the gradient norms, relative, in float32."""

TWO = "deepspeed --num_gpus 2"
METHODS = {
    "full": ("--learning_rate", "2e-4"),
    "lora": ("--use_peft", "--lora_rank", "4", "--target_modules", "all", "--learning_rate", "2e-3"),
}
DATA = {"pt": ("--block_size", "45"), "sft": ("--max_length", "96")}


@pytest.fixture(scope="module")
def train(
    run: Callable[..., Any], tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """`train("pt", "full", 2, *flags)`: what was logged by one process, or by two that share rows; once a command."""
    finished: dict[tuple[Any, ...], dict[str, Any]] = {}

    def once(stage: str, method: str, size: int, *flags: str, processes: int = 0, model: Path = tiny_model) -> Any:
        key = (stage, method, size, processes, model, *flags)
        processes = processes or size
        if key not in finished:
            folder = tmp_path_factory.mktemp(f"{stage}-{method}-{size}")
            said = run(
                f"run_{stage}.py",
                *("--model_name_or_path", str(model), "--output_dir", str(folder)),
                *("--train_file_dir", str(tiny_data / stage)),
                *("--validation_file_dir", str(tiny_data / f"{stage}_eval")),
                *("--per_device_train_batch_size", str(4 * size // processes), "--max_steps", str(STEPS)),
                *("--per_device_eval_batch_size", "2", "--lr_scheduler_type", "constant", "--logging_steps", "1"),
                *("--save_strategy", "no", "--report_to", "none", "--gradient_checkpointing", "False"),
                *METHODS[method],
                *DATA[stage],
                *(("--sequence_parallel_size", str(size)) if size > 1 else ()),
                *flags,
                launcher="python" if processes == 1 else f"deepspeed --num_gpus {processes}",
                warm=True,
            ).check()
            history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
            manifest = json.loads((folder / "hftune.json").read_text())
            finished[key] = {
                "folder": folder,
                "output": said.output,
                "steps": [(entry["loss"], entry["grad_norm"]) for entry in history if "loss" in entry],
                "manifest": manifest,
                "metrics": manifest["metrics"],
                "logged": [entry for entry in history if "loss" in entry],
            }
        return finished[key]

    return once


def check_same(found: dict[str, Any], reference: dict[str, Any]) -> None:
    """Losses, gradient norms, what is held out and what was counted."""
    assert len(found["steps"]) == len(reference["steps"]) == STEPS
    for number, (here, there) in enumerate(zip(found["steps"], reference["steps"], strict=True)):
        assert here == pytest.approx(there, rel=TOLERANCE), f"step {number + 1}"
    assert found["metrics"]["eval_loss"] == pytest.approx(reference["metrics"]["eval_loss"], rel=TOLERANCE)
    for name in ("eval_mean_token_accuracy", "eval_token_accuracy", "eval_entropy", "eval_num_tokens"):
        assert (name in found["metrics"]) == (name in reference["metrics"])
        if name in found["metrics"]:
            assert found["metrics"][name] == pytest.approx(reference["metrics"][name], rel=1e-3), name
    for name in ("trained_tokens", "steps"):
        assert found["manifest"][name] == reference["manifest"][name]
    for here, there in zip(found["logged"], reference["logged"], strict=True):
        assert here["epoch"] == pytest.approx(there["epoch"])
        assert here.get("num_tokens") == there.get("num_tokens")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("packing", ["True", "False"])
@pytest.mark.parametrize("stage", DATA)
def test_same_run(stage: str, packing: str, method: str, train: Callable[..., dict[str, Any]]) -> None:
    flags = ("--packing", packing)
    check_same(train(stage, method, 2, *flags), train(stage, method, 1, *flags))
