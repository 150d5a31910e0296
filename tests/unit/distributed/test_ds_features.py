"""Contradictions around DeepSpeed's further features: one message each that names the key, before a model loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.distributed.ds_features import Setting
from hftune.distributed.ds_setup import check_ds_config, resolve_ds_config
from hftune.errors import ArgumentError

GPU, CPU = Setting(on_cpu=False, world_size=4, bf16=True), Setting(on_cpu=True, world_size=2)
CPU_OFFLOAD = {"device": "cpu"}


def zero(stage: int = 3, **more: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **more}}


def low(stage: int = 2, *, master: bool = True, states: bool = True, **more: Any) -> dict[str, Any]:
    block = {"enabled": "auto", "bf16_master_weights_and_grads": master, "bf16_optimizer_states": states}
    return {**zero(stage, **more), "bf16": block}


def nvme(path: str | None = None, stage: int = 3) -> dict[str, Any]:
    return zero(stage, offload_optimizer={"device": "nvme", "nvme_path": path})


# name: (config, setting, what the one message must say)
FAULTS: dict[str, tuple[dict[str, Any], Setting, tuple[str, ...]]] = {
    "hpZ below stage 3": (zero(2, zero_hpz_partition_size=2), GPU, ("zero_hpz_partition_size", "stage 3")),
    "hpZ that does not divide": (zero(zero_hpz_partition_size=3), GPU, ("4 processes", "groups of 3")),
    "quantised weights below stage 3": (zero(1, zero_quantized_weights=True), GPU, ("zero_quantized_weights",)),
    "quantised gradients on a CPU": (zero(zero_quantized_gradients=True), CPU, ("CUDA kernel", "zero3_hpz")),
    "NVMe without a folder": (nvme(), GPU, ("names no folder", "--nvme_path")),
    "NVMe on a folder that is none": (nvme(__file__), GPU, ("there is no folder", "nvme_path")),
    "NVMe at stage 2": (nvme("/tmp", 2), GPU, ("stage 2 would keep", "offload_optimizer.device")),
    "NVMe without its operator": (nvme("/tmp"), Setting(on_cpu=True, has_aio=False), ("libaio", "zero3_offload")),
    "two folders": (nvme("/tmp"), Setting(on_cpu=False, nvme_path="/var"), ("/tmp", "--nvme_path /var")),
    "a folder for nothing": (zero(3), Setting(on_cpu=False, nvme_path="/tmp"), ("nothing is offloaded to NVMe",)),
    "bf16 states without bf16": (low(), CPU, ("training is not in bf16", "--bf16 True")),
    "bf16 states without ZeRO": (low(0), GPU, ('cannot read "bf16"', "ZeRO Stage 1, 2, or 3")),
    "bf16 moments alone": (low(master=False), GPU, ("bf16_optimizer_states", "bf16_master_weights_and_grads")),
    "bf16 weights alone": (low(states=False), GPU, ("bf16_master_weights_and_grads", "offloaded")),
    "bf16 moments, offloaded": (low(offload_optimizer=CPU_OFFLOAD), GPU, ("float32", "offload_optimizer")),
    "SuperOffload at stage 2": (zero(2, offload_optimizer=CPU_OFFLOAD | {"super_offload": True}), GPU, ("stage 3",)),
    "SuperOffload on a CPU": (zero(offload_optimizer=CPU_OFFLOAD | {"super_offload": True}), CPU, ("NVIDIA GPU",)),
    "SuperOffload with Lion": (
        zero(offload_optimizer=CPU_OFFLOAD | {"super_offload": True}),
        Setting(on_cpu=False, optim="lion_32bit"),
        ("AdamW alone", "lion_32bit"),
    ),
    "ZenFlow": (zero(2, offload_optimizer=CPU_OFFLOAD, zenflow={"topk_ratio": 0.1}), GPU, ("ZenFlow", "accumulation")),
    "DeepCompile on a CPU": (zero() | {"compile": {"deepcompile": True}}, CPU, ("CUDA operators",)),
    "DeepCompile without ZeRO": (zero(0) | {"compile": {"deepcompile": True}}, GPU, ("stage 1, 2 or 3",)),
    "DeepCompile with recomputing": (
        zero() | {"compile": {"deepcompile": True}},
        Setting(on_cpu=False, recomputes=True),
        ("deepcompile", "--activation_checkpointing none"),
    ),
    "DeepSpeed's own recomputing": (
        zero() | {"activation_checkpointing": {"partition_activations": True}},
        GPU,
        ("activation_checkpointing", "would do nothing"),
    ),
    "FastPersist": (zero() | {"checkpoint": {"writer": {"decoupled": True}}}, GPU, ("checkpoint.writer", "publishes")),
    "DataStates": (zero() | {"datastates_ckpt": {"enabled": True}}, GPU, ("datastates_ckpt", "publishes")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults(fault: str) -> None:
    config, setting, says = FAULTS[fault]
    (problem,) = check_ds_config(config, setting)
    for words in says:
        assert words in str(problem)


def test_what_is_right_passes(tmp_path: Path) -> None:
    on_disk = Setting(on_cpu=False, nvme_path=str(tmp_path))
    for config, setting in (
        (zero(zero_hpz_partition_size=2), GPU),
        (zero(zero_hpz_partition_size="auto", zero_quantized_weights=True, zero_quantized_gradients=True), GPU),
        (nvme(str(tmp_path)), GPU),
        (nvme(), on_disk),
        (low(3), GPU),
        (low(states=False, offload_optimizer=CPU_OFFLOAD), GPU),
        (zero() | {"compile": {"deepcompile": True}}, GPU),
        (zero() | {"checkpoint": {"tag_validation": "Warn"}, "datastates_ckpt": {"enabled": False}}, GPU),
    ):
        assert check_ds_config(config, setting) == []


def test_the_folder_and_the_group_are_filled_in(tmp_path: Path) -> None:
    config = zero(zero_hpz_partition_size="auto", offload_optimizer={"device": "nvme"}, offload_param=CPU_OFFLOAD)
    resolved, changes = resolve_ds_config(
        config, has_compiler=True, on_cpu=False, nvme_path=str(tmp_path), local_processes=8
    )
    assert resolved["zero_optimization"]["offload_optimizer"]["nvme_path"] == str(tmp_path)
    assert "nvme_path" not in resolved["zero_optimization"]["offload_param"]
    assert resolved["zero_optimization"]["zero_hpz_partition_size"] == 8 and any("8 process(es)" in c for c in changes)


def test_arguments_are_refused_before_anything_loads(tmp_path: Path) -> None:
    flags = ("--model_name_or_path", "m", "--output_dir", str(tmp_path), "--use_cpu", "--report_to", "none")
    with pytest.raises(ArgumentError, match="--nvme_path"):
        parse_arguments("sft", [*flags, "--nvme_path", str(tmp_path)])
    with pytest.raises(ArgumentError, match="CUDA kernel"):
        parse_arguments("sft", [*flags, "--deepspeed", "zero3_zeropp"])
