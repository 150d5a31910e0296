"""What a run makes of a DeepSpeed config: checked, completed, without secrets."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.distributed import ds_setup
from hftune.distributed.ds_config import offload_device, read_ds_config, zero_stage
from hftune.distributed.ds_features import Setting
from hftune.distributed.ds_setup import (
    check_ds_config,
    fill_in_sizes,
    prepare,
    remove_secrets,
    resolve_ds_config,
    setting_of,
)
from hftune.errors import ArgumentError
from hftune.secrets import redact

FOLDER = Path(__file__).parents[3] / "ds_configs"
SHIPPED = sorted(FOLDER.rglob("*.json"))
OFFLOADED = {"offload": "cpu", "superoffload": "cpu", "nvme": "nvme"}


def prepared(config: dict[str, Any], **changes: Any) -> Any:
    """The arguments of a run with this config."""
    args = arguments(config, **changes)
    prepare(args)
    return args


def arguments(config: dict[str, Any], **changes: Any) -> Any:
    """Of a run on one CPU."""
    values = {
        **{"deepspeed": config, "use_cpu": True, "bf16": False, "fp16": False, "nvme_path": None, "optim_name": "sgd"},
        **{"torch_compile": False, "tensor_parallel_size": 1, "recomputation": None, "max_grad_norm": 1.0},
        **{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
    }
    return SimpleNamespace(**values | changes)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notices."""
    lines: list[str] = []
    monkeypatch.setattr(ds_setup, "notice", lines.append)
    return lines


def test_a_run_s_config_is_completed(said: list[str]) -> None:
    secret = {"wandb": {"enabled": True, "api_key": "a-made-up-key-0123456789"}}
    args = prepared({"zero_optimization": {"stage": 3}, "gradient_clipping": "auto", **secret})
    assert args.ds_resolved["wandb"] == {"enabled": True} and "holds secrets" in said.pop()
    assert args.ds_resolved["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True
    assert args.ds_resolved["train_micro_batch_size_per_gpu"] == "auto"
    assert args.deepspeed == args.ds_resolved
    assert (args.torch_compile, args.tensor_parallel_size) == (False, 1)
    assert len(said) == 2 and "names no train_micro_batch_size_per_gpu" in said[1]


def test_all_problems_are_said_together(said: list[str]) -> None:
    odd = {
        "optimizer": {"type": "AdamW"},
        "gradient_clipping": 0.5,
        "tensor_parallel": {"autotp_size": 2},
    }
    with pytest.raises(ArgumentError) as caught:
        prepared(odd)
    for word in ("parameter groups", "--max_grad_norm 1.0", "remove the block and use --tensor_parallel_size"):
        assert word in str(caught.value)
    assert said == []


def test_the_engine_sees_a_block_that_loading_does_not(said: list[str]) -> None:
    args = prepared({}, tensor_parallel_size=2)
    assert args.tensor_parallel_size == 2
    assert args.ds_resolved["tensor_parallel"] == {"autotp_size": 2} and "tensor_parallel" not in args.deepspeed


def test_deepcompile_needs_a_compiled_model(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ds_setup, "check_features", lambda *_: [])  # of GPUs and their operators
    config = {"compile": {"deepcompile": True}, "zero_optimization": {"stage": 1}}
    assert prepared(config).torch_compile and "--torch_compile" in said[0]
    said.clear()
    assert prepared(config, torch_compile=True).torch_compile
    assert not any("--torch_compile" in line for line in said)


def test_the_setting_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ds_setup.launch, "has_async_io", lambda: pytest.fail("it takes seconds"))
    assert setting_of(arguments({}, bf16=True, recomputation=object()), {}) == Setting(
        on_cpu=True, bf16=True, optim="sgd", recomputes=True
    )
    monkeypatch.setattr(ds_setup.launch, "has_async_io", lambda: False)
    config = {"zero_optimization": {"offload_param": {"device": "nvme"}}}
    assert not setting_of(arguments(config), config).has_aio
    with ds_setup.ranks.planning_for(ds_setup.ranks.PlannedWorld(4, 4)):
        assert setting_of(arguments(config, use_cpu=False), config).world_size == 4


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
    resolved, changes = resolve_ds_config(config, has_compiler=True, on_cpu=True, nvme_path=nvme, local_processes=2)
    assert len(changes) == ("auto" in json.dumps(config["zero_optimization"].get("zero_hpz_partition_size", 1)))
    for block in ("offload_optimizer", "offload_param"):
        if nvme and block in resolved["zero_optimization"]:
            assert resolved["zero_optimization"][block]["nvme_path"] == nvme
    assert resolved["zero_optimization"].get("zero_hpz_partition_size", 2) == 2
    assert changes or nvme or resolved == config


def test_zero3_weights_are_always_gathered_for_saving() -> None:
    given = {"zero_optimization": {"stage": 3}}
    resolved, changes = resolve_ds_config(given, has_compiler=True, on_cpu=False)
    assert resolved["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True
    assert len(changes) == 1
    assert json.dumps(given) == '{"zero_optimization": {"stage": 3}}', "the given config is left alone"


@pytest.mark.parametrize("given", [{}, {"zero_optimization": {}}, {"zero_optimization": {"overlap_comm": True}}])
def test_a_stage_that_is_left_out_is_written_down(given: dict[str, Any]) -> None:
    """accelerate asks for it when a checkpoint is saved, and a run ended there."""
    resolved, changes = resolve_ds_config(given, has_compiler=True, on_cpu=True)
    assert resolved["zero_optimization"] == {"stage": 0, **given.get("zero_optimization", {})}
    assert not changes


def test_offload_without_a_compiler() -> None:
    given = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    resolved, changes = resolve_ds_config(given, has_compiler=False, on_cpu=True)
    assert resolved["zero_force_ds_cpu_optimizer"] is False
    assert "no C++ compiler" in changes[0]


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


def test_comets_key_moves_to_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_API_KEY", "another")
    config = {"comet": {"enabled": True, "api_key": "comet-key-1"}, "train_batch_size": "auto"}
    clean, said = remove_secrets(config)
    assert clean == {"comet": {"enabled": True}, "train_batch_size": "auto"} and config["comet"]["api_key"]  # type: ignore[index]
    assert os.environ["COMET_API_KEY"] == "comet-key-1" and redact("comet-key-1") == "***"
    assert len(said) == 1 and "kept in COMET_API_KEY" in said[0]


@pytest.mark.parametrize(
    "config",
    (
        {"hub_token": "zzzz-zzzz-1"},
        {"wandb": {"api_keys": ["zzzz-zzzz-1", "zz-2"]}},
        {"a": [[{"credentials": {"user": "zzzz-zzzz-1"}}]]},
        {"password": 1234567890},
        {"comet": {"api_key": ["zzzz-zzzz-1"]}},
        {"csv_monitor": {"output_path": ["https://host/x?token=zzzz-zzzz-1"]}},
        {"a": {"https://me:zzzz-zzzz-1@host": [1, ["https://me:zzzz-zzzz-1@host"]]}},
    ),
)
def test_others_are_left_out(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    clean, said = remove_secrets(config)
    assert not re.search("zz-|123456", str(clean)) and len(said) == 1
    assert config == before and "left out" in said[0]


def test_one_found_elsewhere_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASS", "zzzz-zzzz-9")
    clean, said = remove_secrets({"wandb": {"group": "by zzzz-zzzz-9", "project": "mine"}})
    assert clean == {"wandb": {"group": "by ***", "project": "mine"}}
    assert len(said) == 1


@pytest.mark.parametrize(
    "config",
    (
        *({"comet": {"api_key": None}}, {"comet": {"api_key": ""}}, {"fp16": {"enabled": "auto"}}),
        *({"a": [{"use_auth_token": True}, "b", 1, None]}, {"credentials": {}}),
    ),
)
def test_nothing_to_do(config: dict[str, Any]) -> None:
    assert remove_secrets(config) == (config, [])
