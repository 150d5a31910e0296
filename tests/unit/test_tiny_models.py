"""`tests/table/tiny.py`: a tiny model of any type by a general rule, with every kind of layer that the type has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.table.tiny import EXCEPTIONS, UNBUILT, model_class, model_types, tiny_checkpoint, tiny_config

# One of each structure: plain, mixed layers, state space, latent attention, experts, heads by layer, several parts.
STRUCTURES = ("llama", "qwen3_next", "nemotron_h", "deepseek_v3", "gpt_oss", "gemma4", "qwen3_5")


@pytest.mark.parametrize("model_type", STRUCTURES)
def test_few_parameters_and_every_kind_of_layer(model_type: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config, default = tiny_config(model_type), CONFIG_MAPPING[model_type]()
    with torch.device("meta"):
        model = model_class(model_type)(config)
    assert model.num_parameters() < 1_000_000
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = getattr(default.get_text_config(), name, None) or []
        assert set(getattr(config.get_text_config(), name, None) or []) == set(kinds)


def test_the_same_weights_again_and_readable(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for name in ("one", "two"):
        tiny_checkpoint("lfm2", tmp_path / name)
        torch.rand(1)  # what was drawn before does not matter
    one, two = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("one", "two"))
    assert all(torch.equal(mine, two.state_dict()[name]) for name, mine in one.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    ids = tokenizer("What is 2 plus 3?", return_tensors="pt").input_ids
    assert int(ids.max()) < one.config.vocab_size
    assert one(input_ids=ids, labels=ids).loss.isfinite()


def test_exceptions_are_of_types_that_exist() -> None:
    assert {*EXCEPTIONS, *UNBUILT} <= set(model_types())


@pytest.mark.slow
def test_every_type_can_be_made() -> None:
    for model_type in set(model_types()) - set(UNBUILT):
        with torch.device("meta"):
            assert model_class(model_type)(tiny_config(model_type)).num_parameters() < 1_500_000, model_type
