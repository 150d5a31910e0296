"""Weights of sharded experts get transformers' names again, on stand-ins of AutoEP's layers.

tests/parity/test_sharing.py trains them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hftune.distributed.expert_parallel import PRESETS, expert_layers, expert_options, gathered_weights, group_name


class Experts(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.full((count, 2, 3), float(number))) for number in (1, 2, 3))


class AutoEPMoELayer(nn.Module):
    """As DeepSpeed's layer of that name, on one process."""

    ep_group_name, ep_size, num_experts, num_local_experts = "ep_size_1", 1, 2, 2

    def __init__(self, model_family: str) -> None:
        super().__init__()
        self.model_family, self.ep_group = model_family, object()
        self.router = nn.Module()
        self.router.gate = nn.Linear(3, 2, bias=False)
        self.experts = Experts(2)
        self.shared_experts = nn.Linear(3, 3, bias=False)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of one process."""
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0])
    monkeypatch.setattr(dist, "gather", lambda mine, pieces, dst, group: pieces[0].copy_(mine))


def model(family: str = "mixtral") -> Any:
    found = nn.Module()
    found.norm, found.mlp = nn.LayerNorm(3), AutoEPMoELayer(family)
    found.tied = nn.Module()
    found.tied.weight = found.norm.weight
    found.register_buffer("kept", torch.ones(1))
    found.register_buffer("computed", torch.ones(1), persistent=False)
    return found


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("family", "shared"), [("mixtral", "shared_experts"), ("qwen3_moe", "shared_expert")])
def test_names_are_those_of_transformers(family: str, shared: str) -> None:
    weights = gathered_weights(model(family))
    assert {*weights} == {
        *("norm.weight", "norm.bias", "tied.weight", "kept", "mlp.gate.weight", f"mlp.{shared}.weight"),
        *("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    }
    assert weights["tied.weight"] is weights["norm.weight"], "one tensor under its names"
    assert weights["mlp.experts.gate_up_proj"].shape == (2, 4, 3)
    assert weights["mlp.experts.gate_up_proj"][0, :, 0].tolist() == [1.0, 1.0, 3.0, 3.0]
    assert weights["mlp.experts.down_proj"].unique().tolist() == [2.0]


def test_options_of_groups_and_names_of_deepspeed() -> None:
    whole = model()
    (name, layer), *rest = expert_layers(whole)
    assert (name, rest) == ("mlp", []) and not [*expert_layers(nn.Linear(1, 1))] and not expert_options(nn.Linear(1, 1))
    experts = layer.experts.parameters()
    assert expert_options(whole) == {id(one): {"moe": True, "name": "ep_size_1"} for one in experts}, "no router"
    assert group_name(4) == "ep_size_4" and set(PRESETS) <= set(CONFIG_MAPPING)
    theirs = pytest.importorskip("deepspeed.module_inject.auto_ep_layer")
    assert theirs.AutoEPMoELayer.__name__ == AutoEPMoELayer.__name__


def test_processes_that_hold_copies_gather_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [2, 3])
    monkeypatch.setattr("hftune.distributed.expert_parallel.ranks", SimpleNamespace(is_main=lambda: False))
    assert gathered_weights(model()) == {}
