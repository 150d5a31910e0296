"""Where decoder layers are found, and which lists of modules are none."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from hftune.models.structure import checkpointed_layers, decoder_layers
from tests.architectures import ARCHITECTURES, make_config


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_of_every_architecture(name: str) -> None:
    model = AutoModelForCausalLM.from_config(make_config(name))
    layers = decoder_layers(model)
    assert len(layers) == model.config.get_text_config().num_hidden_layers
    owner, attribute = checkpointed_layers(model)
    assert list(getattr(owner, attribute)) == layers


class Plain(PreTrainedModel):
    """Layers that cannot recompute themselves, next to a longer list that is no list of layers."""

    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(5))
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(config.num_hidden_layers))


def test_other_lists_are_not_taken_for_layers() -> None:
    model = Plain(LlamaConfig(num_hidden_layers=3))
    assert decoder_layers(model) == list(model.blocks)
    assert checkpointed_layers(model) is None
    del model.blocks
    assert decoder_layers(model) == []
