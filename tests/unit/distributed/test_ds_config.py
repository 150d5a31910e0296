"""DeepSpeed configs as pure functions on dicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.distributed.ds_config import (
    check_ds_config,
    fill_in_sizes,
    offload_device,
    read_ds_config,
    resolve_ds_config,
    zero_stage,
)
from hftune.distributed.ds_features import Setting
from hftune.errors import ArgumentError

FOLDER = Path(__file__).parents[3] / "ds_configs"
SHIPPED = sorted(FOLDER.rglob("*.json"))
OFFLOADED = {"offload": "cpu", "superoffload": "cpu", "nvme": "nvme"}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_configs(file: Path, tmp_path: Path) -> None:
    """On a GPU with all that there is, every one is right; its name says its stage and where the optimizer lies."""
    config, words = read_ds_config(str(file)), file.stem.split("_")
    nvme = str(tmp_path) if "nvme" in words else None
    assert check_ds_config(config, Setting(on_cpu=False, world_size=4, bf16=True, nvme_path=nvme)) == []
    assert zero_stage(config) == int(file.stem[4])
    (device,) = [OFFLOADED[word] for word in words if word in OFFLOADED] or [None]
    assert offload_device(config, "optimizer") == device
    assert config["gradient_clipping"] == "auto", "DeepSpeed would clip at 1.0"
    resolved, changes = resolve_ds_config(config, has_compiler=True, on_cpu=True, nvme_path=nvme, machine=2)
    assert len(changes) == ("auto" in json.dumps(config["zero_optimization"].get("zero_hpz_partition_size", 1)))
    for block in ("offload_optimizer", "offload_param"):
        if nvme and block in resolved["zero_optimization"]:
            assert resolved["zero_optimization"][block]["nvme_path"] == nvme
    assert resolved["zero_optimization"].get("zero_hpz_partition_size", 2) == 2
    assert changes or nvme or resolved == config


def test_configs_that_are_shipped() -> None:
    names = {file.stem for file in SHIPPED}
    assert names >= {"zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "zero3_nvme", "zero3_hpz"}
    assert all(read_ds_config(name) == json.loads((FOLDER / f"{name}.json").read_text()) for name in names)


def test_every_config_is_on_the_page() -> None:
    page = (FOLDER.parent / "docs" / "deepspeed.md").read_text()
    assert [file.stem for file in SHIPPED if f"`{file.stem}`" not in page] == []


def test_inline_json_and_broken_json(tmp_path: Path) -> None:
    assert zero_stage(read_ds_config('{"zero_optimization": {"stage": 1}}')) == 1
    (tmp_path / "broken.json").write_text('{\n  "a": 1,,\n}')
    with pytest.raises(ArgumentError, match=r"broken\.json:2"):
        read_ds_config(str(tmp_path / "broken.json"))


def test_zero3_weights_are_always_gathered_for_saving() -> None:
    given = {"zero_optimization": {"stage": 3}}
    resolved, changes = resolve_ds_config(given, has_compiler=True, on_cpu=False)
    assert resolved["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True
    assert len(changes) == 1
    assert json.dumps(given) == '{"zero_optimization": {"stage": 3}}', "the given config is left alone"


def test_offload_without_a_compiler() -> None:
    given = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    resolved, changes = resolve_ds_config(given, has_compiler=False, on_cpu=True)
    assert resolved["zero_force_ds_cpu_optimizer"] is False
    assert "no C++ compiler" in changes[0]


@pytest.mark.parametrize("key", ["elasticity", "amp", "mics_shard_size"])
def test_removed_keys(key: str) -> None:
    for config in ({key: {}}, {"zero_optimization": {key: 1}}):
        (problem,) = check_ds_config(config)
        assert key in str(problem)


def test_an_optimizer_block_is_refused() -> None:
    (problem,) = check_ds_config({"optimizer": {"type": "AdamW"}})
    assert "parameter groups" in str(problem)


def test_a_scheduler_block_is_refused() -> None:
    (problem,) = check_ds_config({"scheduler": {"type": "WarmupDecayLR"}})
    assert "--lr_scheduler_type" in str(problem) and "linear" in str(problem)


@pytest.mark.parametrize("optim, kept", [("adamw_torch", True), ("adamw_torch_fused", True), ("sgd", False)])
def test_only_adamw_has_a_twin_for_offload(optim: str, kept: bool) -> None:
    """accelerate would make DeepSpeedCPUAdam of any other optimizer."""
    given = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    resolved, changes = resolve_ds_config(given, has_compiler=True, on_cpu=True, optim=optim)
    assert resolved.get("zero_force_ds_cpu_optimizer", True) is kept
    assert bool(changes) is not kept


def test_muon_under_zero3_needs_whole_gradients() -> None:
    given = {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}}
    resolved, changes = resolve_ds_config(given, has_compiler=True, on_cpu=True, optim="muon")
    assert resolved["zero_optimization"]["reduce_scatter"] is False and "reduce_scatter" in changes[0]
    assert resolve_ds_config(given, has_compiler=True, on_cpu=True, optim="sgd") == (given, [])


def test_a_config_without_sizes_leaves_them_to_the_arguments() -> None:
    """DeepSpeed would stop with an AssertionError."""
    minimal = {"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}
    (said,) = fill_in_sizes(minimal)
    assert minimal == {
        "zero_optimization": {"stage": 2},
        "gradient_clipping": 0.5,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    assert "train_micro_batch_size_per_gpu, gradient_accumulation_steps: the arguments count" in said
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu"):
        given = {name: 4}
        assert fill_in_sizes(given) == [] and given == {name: 4}
