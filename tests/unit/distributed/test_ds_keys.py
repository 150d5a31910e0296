"""Faults planted in a DeepSpeed config: each is one message that names the key, before any model loads."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from hftune.distributed.ds_features import Setting
from hftune.distributed.ds_keys import OLD_KEYS, TOP_KEYS, check_against_arguments
from hftune.distributed.ds_setup import check_ds_config

NVME = {"device": "nvme", "nvme_path": "/nowhere/at/all"}
# name: (config, what the one message must say)
FAULTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown key": ({"gradient_cliping": "auto"}, ("gradient_cliping", 'did you mean "gradient_clipping"')),
    "unknown key of ZeRO": (
        {"zero_optimization": {"stage": 3, "overlap_com": True}},
        ("zero_optimization.overlap_com", "not permitted"),
    ),
    "key of ZeRO at the top": ({"offload_optimizer": {}}, ("offload_optimizer", "the block that it belongs to")),
    "key of the top in ZeRO": (
        {"zero_optimization": {"gradient_clipping": 1.0}},
        ("zero_optimization.gradient_clipping", "not permitted"),
    ),
    "removed key of the top": ({"elasticity": {}}, ("Elastic training has been removed",)),
    "removed key": ({"zero_optimization": {"mics_shard_size": 8}}, ("mics_shard_size", "has been removed")),
    "old key": ({"zero_optimization": {"cpu_offload": True}}, ("cpu_offload", "offload_optimizer")),
    "no such stage": ({"zero_optimization": {"stage": 4}}, ("zero_optimization.stage", "is 4")),
    "a stage in words": ({"zero_optimization": {"stage": "three"}}, ("zero_optimization.stage", "'three'")),
    "a number in words": ({"gradient_clipping": "one"}, ("gradient_clipping", "'one'")),
    "a switch for a block": ({"bf16": True}, ('cannot read "bf16"',)),
    "a wrong kind below": (
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}},
        ("offload_param.device", "'disk'"),
    ),
    "a word for a switch": ({"bf16": {"enabled": "yes"}}, ("bf16.enabled", "'yes'", '"auto"')),
    "nothing for a switch": ({"fp16": {"enabled": None}}, ("fp16.enabled", "None")),
    "nobody's auto": (
        {"zero_optimization": {"stage": 2, "overlap_comm": "auto"}},
        ("zero_optimization.overlap_comm", '"auto", and nothing fills it in'),
    ),
    "nobody's auto within": (
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": "auto"}}},
        ("zero_optimization.offload_optimizer.pin_memory", "nothing fills it in"),
    ),
    "both precisions": ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ("fp16 and bf16 at once",)),
    "offload of weights below stage 3": (
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        ("offload_param needs ZeRO stage 3",),
    ),
    "offload without ZeRO": (
        {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
        ("offload_optimizer needs ZeRO stage 1",),
    ),
    "no NVMe folder": ({"zero_optimization": {"stage": 3, "offload_param": NVME}}, ("/nowhere/at/all", "nvme_path")),
    "groups that do not divide": (
        {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}},
        ("6 processes do not divide into groups of 4",),
    ),
    "a number for a monitor": ({"wandb": 5}, ("--deepspeed: wandb", "is 5")),
    "an unknown key of a monitor": ({"wandb": {"enabled": False, "run": "x"}}, ("wandb.run", "not permitted")),
    "no folder for a monitor": ({"csv_monitor": {"output_path": 3}}, ("csv_monitor.output_path", "is 3")),
    "a switch for compiling": ({"compile": True}, ("--deepspeed: compile", "True")),
    "an unknown key of compiling": ({"compile": {"enabled": True}}, ("enabled", "not permitted")),
    "a word for a part": ({"data_efficiency": {"data_sampling": 5}}, ('cannot read "data_efficiency"', "a block")),
    "a switch for an engine": ({"hybrid_engine": True}, ('cannot read "hybrid_engine"', "True")),
    "nothing for a logger": ({"comms_logger": None}, ('cannot read "comms_logger"',)),
    "a word for a profiler": ({"flops_profiler": {"enabled": "yes"}}, ('cannot read "flops_profiler"',)),
    "no dtype": ({"communication_data_type": "float99"}, ('cannot read "communication_data_type"', "float99")),
    "steps in words": ({"steps_per_print": "many"}, ("steps_per_print", "'many'")),
    "nobody's auto of a number": ({"steps_per_print": "auto"}, ("steps_per_print", "nothing fills it in")),
    "nobody's auto elsewhere": ({"csv_monitor": {"job_name": "auto"}}, ("csv_monitor.job_name", "nothing fills it in")),
    "a loop of its own": ({"hybrid_engine": {"enabled": True}}, ("hybrid_engine.enabled", "loop of its own")),
    "a loader of its own": (
        {"data_efficiency": {"data_routing": {"enabled": True}}},
        ("data_efficiency.enabled", "loader of its own"),
    ),
    "a tuner": ({"autotuning": {"enabled": True}}, ("autotuning.enabled", "ends a run")),
    "an optimizer": ({"optimizer": {"type": "AdamW"}}, ("optimizer", "--optim")),
    "a scheduler": ({"scheduler": {"type": "WarmupLR"}}, ("scheduler", "--lr_scheduler_type")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults(fault: str) -> None:
    config, says = FAULTS[fault]
    (problem,) = check_ds_config(config, Setting(on_cpu=False, world_size=6))
    for words in says:
        assert words in str(problem)


ARGUMENTS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 1.0,
    "bf16": True,
    "fp16": False,
}


@pytest.mark.parametrize(
    "config, says",
    [
        ({"train_micro_batch_size_per_gpu": 8}, "--per_device_train_batch_size 4"),
        ({"gradient_accumulation_steps": 1}, "--gradient_accumulation_steps 2"),
        ({"train_batch_size": 32}, "4 x 2 x 2 processes = 16"),
        ({"gradient_clipping": 0.5}, "--max_grad_norm 1.0"),
        ({"fp16": {"enabled": True}}, "--fp16 False"),
        ({"bf16": {"enabled": False}}, "--bf16 True"),
    ],
)
def test_contradictions_name_both(config: dict[str, Any], says: str) -> None:
    (problem,) = check_against_arguments(config, ARGUMENTS, world_size=2)
    assert says in str(problem) and next(iter(config)) in str(problem)


def test_agreement_and_auto() -> None:
    agreed = {
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 16,
        "gradient_clipping": 1,
        "bf16": {"enabled": True},
    }
    assert list(check_against_arguments(agreed, ARGUMENTS, world_size=2)) == []
    auto = {key: "auto" for key in agreed if key != "bf16"} | {"bf16": {"enabled": "auto"}}
    assert list(check_against_arguments(auto, ARGUMENTS, world_size=2)) == []


def test_several_faults_come_together() -> None:
    problems = check_ds_config({"amp": {}, "stepz": 1, "zero_optimization": {"stage": 7}})
    assert len(problems) == 3


def test_the_keys_are_those_of_deepspeed() -> None:
    """A key that DeepSpeed no longer has anywhere in its sources would be accepted and do nothing."""
    import deepspeed
    from deepspeed.runtime import config as reader

    root = Path(deepspeed.__file__).parent
    texts = {file: file.read_text() for file in [Path(inspect.getfile(reader)), *root.rglob("constants.py")]}
    texts |= {file: file.read_text() for file in [*root.rglob("config.py"), *root.rglob("*config*.py")]}
    constants = {
        node.value
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert constants >= TOP_KEYS, TOP_KEYS - constants
    assert not TOP_KEYS & OLD_KEYS.keys()
