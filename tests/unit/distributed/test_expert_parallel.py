"""What is asked of layers whose experts are sharded; tests/parity/test_expert_parallel.py trains them."""

from __future__ import annotations

import pytest
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hftune.distributed import expert_parallel
from hftune.distributed.expert_parallel import PRESETS, expert_layers, expert_options, group_name


class AutoEPMoELayer(nn.Module):
    """Named as DeepSpeed's, of which only the name is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts, self.ep_group_name = nn.Linear(2, 2), nn.Linear(2, 2), group_name(2)


def test_layers_and_the_groups_of_their_experts() -> None:
    layers = [AutoEPMoELayer(), AutoEPMoELayer()]
    model = nn.Sequential(nn.Linear(2, 2), layers[0], nn.Sequential(layers[1]))
    assert [*expert_layers(model)] == [("1", layers[0]), ("2.0", layers[1])]
    options = expert_options(model)
    experts = [parameter for layer in layers for parameter in layer.experts.parameters()]
    assert options == {id(parameter): {"moe": True, "name": "ep_size_2"} for parameter in experts}, "no router"
    assert [*expert_layers(nn.Linear(2, 2))] == [] and expert_options(nn.Linear(2, 2)) == {}


def test_the_names_are_deepspeeds() -> None:
    layer = pytest.importorskip("deepspeed.module_inject.auto_ep_layer")
    assert layer.AutoEPMoELayer.__name__ == AutoEPMoELayer.__name__
    assert set(PRESETS) <= set(CONFIG_MAPPING) and expert_parallel.FLAG == "--expert_parallel_size"
