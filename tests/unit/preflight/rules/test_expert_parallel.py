"""Expert parallelism where it was found right; refusals through a whole run are in test_tensor_parallel.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from transformers import MixtralConfig, Qwen2Config

from hftune.arguments.adapter import AdapterArguments
from hftune.preflight.rules.expert_parallel import check_expert_engine, check_expert_model, check_trained_experts


def model_says(config: Any, size: int = 2) -> list[str]:
    args: Any = SimpleNamespace(expert_parallel_size=size)
    return [str(problem) for problem in check_expert_model(config, args)]


def test_models() -> None:
    assert model_says(MixtralConfig(num_local_experts=8), 4) == []
    assert model_says(MixtralConfig(hidden_act="swish")) == []
    assert "does not train the layers of a qwen2 model" in model_says(Qwen2Config())[0]
    (problem,) = model_says(MixtralConfig(num_local_experts=6), 4)
    assert "6 experts cannot be shared evenly by 4 processes" in problem and "use one of 2, 3, 6" in problem
    noise, act = model_says(MixtralConfig(router_jitter_noise=0.1, hidden_act="gelu"))
    assert "router_jitter_noise 0.1" in noise and "compute gelu, AutoEP's silu" in act


@pytest.mark.parametrize(
    ("config", "stage", "said"),
    [
        (None, 0, "no config for it was given"),
        ({"zero_optimization": {"stage": 0}}, 0, "clips the gradients of each process's experts alone"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, 2, "offload_optimizer"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, 3, "offload_param"),
        ({"zero_optimization": {"stage": 2}, "expert_parallel": {}}, 2, "expert_parallel"),
    ],
)
def test_configs(config: dict[str, Any] | None, stage: int, said: str) -> None:
    args: Any = SimpleNamespace(ds_resolved=config, zero_stage=stage)
    problems = [str(problem) for problem in check_expert_engine(args)]
    assert len(problems) == 1 and said in problems[0], problems
    args.ds_resolved, args.zero_stage = {"zero_optimization": {"stage": 2}}, 2
    assert [*check_expert_engine(args)] == []


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleDict({"experts": nn.Linear(2, 2), "mlp": nn.Linear(2, 2)})
        self.model = nn.ModuleDict({"layer": self.layer})


@pytest.mark.parametrize(
    ("frozen", "stage", "said"),
    [
        (None, 3, ""),
        ("mlp", 2, ""),
        ("mlp", 3, ""),
        ("experts.weight", 2, ""),
        ("experts", 2, "all experts are frozen"),
        ("experts.weight", 3, "ZeRO-3 leaves out of checkpoints"),
        ("experts", 0, ""),
    ],
)
def test_frozen_experts(monkeypatch: pytest.MonkeyPatch, frozen: str | None, stage: int, said: str) -> None:
    from hftune.preflight.rules import expert_parallel

    def plan(model: nn.Module, args: Any) -> set[int]:
        return {id(one) for name, one in model.named_parameters() if frozen is None or frozen not in name}

    monkeypatch.setattr(expert_parallel, "plan_freezing", plan)
    adapter_args = AdapterArguments(freeze_parameters_regex=frozen) if frozen else AdapterArguments()
    args: Any = SimpleNamespace(zero_stage=stage)
    bare: Any = Bare()
    problems = "\n".join(str(problem) for problem in check_trained_experts(bare, adapter_args, args))
    assert said in problems and bool(problems) == bool(said)
