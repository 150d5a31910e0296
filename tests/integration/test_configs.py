"""Every config of ds_configs/, trained with by the real script under the real launcher, or refused by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.distributed.launch import has_async_io
from tests.conftest import ROOT, Finished

FOLDER = ROOT / "ds_configs"
BF16 = ("--bf16", "True")
# Path below ds_configs/: flags beside it, and what a CPU must be told; None: it trains.
CASES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "zero0.json": ((), None),
    "zero1.json": ((), None),
    "zero2.json": ((), None),
    "zero2_offload.json": ((), None),
    "zero2_bf16_states.json": (BF16, None),
    "zero3.json": ((), None),
    "zero3_offload.json": ((), None),
    "zero3_bf16_states.json": (BF16, None),
    "zero3_hpz.json": ((), None),
    "zero3_nvme.json": (("--nvme_path", "."), None if has_async_io() else "libaio"),
    "zero3_nvme_optimizer.json": (("--nvme_path", "."), None if has_async_io() else "libaio"),
    "zero3_zeropp.json": ((), "CUDA kernel"),
    "zero3_superoffload.json": ((), "NVIDIA GPU"),
    "zero3_deepcompile.json": (("--activation_checkpointing", "none"), "CUDA operators"),
}


def test_every_config_has_a_case() -> None:
    assert {str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.json")} == set(CASES)


LAUNCHER = "deepspeed --num_gpus 2"


def flags_of(config: str, model: Path, data: Path, out: Path) -> tuple[str, ...]:
    return (
        *("--deepspeed", f"ds_configs/{config}", "--model_name_or_path", str(model)),
        *("--train_file_dir", str(data / "sft"), "--output_dir", str(out)),
        *("--per_device_train_batch_size", "2", "--max_steps", "3", "--logging_steps", "1", "--learning_rate", "1e-3"),
        *("--save_strategy", "no", "--report_to", "none"),
        *CASES[config][0],
    )


def check(config: str, finished: Finished, out: Path) -> None:
    refusal = CASES[config][1]
    if refusal is None:
        finished.check()
        assert (out / "model.safetensors").is_file()
    else:
        assert finished.code == 2, finished.output[-3000:]
        assert refusal in finished.output and "Traceback" not in finished.output
        assert not out.exists()


SLOW = ("zero0.json", "zero1.json", "zero2.json", "zero3.json")  # tests/matrix trains with the last three


@pytest.mark.parametrize("config", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_two_processes_train_or_are_refused(
    config: str, run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    # Without a compiler torch's AdamW is taken: DeepSpeedCPUAdam takes both cores a minute to compile. The slow tests
    # below and in test_optimizers.py have it.
    start = {"launcher": LAUNCHER, "warm": True, "bare": config.endswith("_offload.json")}
    finished = run("run_sft.py", *flags_of(config, tiny_model, tiny_data, out), **start)
    check(config, finished, out)
    assert not start["bare"] or "no C++ compiler here" in finished.output
