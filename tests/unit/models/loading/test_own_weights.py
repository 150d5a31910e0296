"""What a run saved comes back under the names of its parameters, experts that transformers splits too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hftune.models.loading.own_weights import stored_otherwise, tensors_by_parameter
from hftune.trainers.features.saving import load_best, load_weights
from tests.architectures import make_config
from tests.unit.trainers.features import made_up

SPLIT = {"llama": False, "mixtral": True, "qwen3_moe": True}


def made(name: str, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(make_config(name), dtype=dtype)


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
def test_the_weights_of_a_run_come_back(name: str, dtype: torch.dtype | None, tmp_path: Path) -> None:
    saved, live = (made(name, seed, dtype or torch.bfloat16) for seed in (1, 2))
    if dtype is None:  # several types: the norm's small differences would be lost in the other one
        for model in (saved, live):
            model.model.norm.float()
        saved.model.norm.weight.data += 1e-4
    saved.save_pretrained(tmp_path)
    assert stored_otherwise(live, tmp_path) == SPLIT[name]
    found, wanted = tensors_by_parameter(live, tmp_path), saved.state_dict()
    assert {*found} == {*wanted}
    for parameter, tensor in wanted.items():
        assert torch.equal(found[parameter].to(tensor.dtype), tensor), parameter
    run = made_up.run(model=live)
    assert load_weights(run, str(tmp_path)) == SPLIT[name]
    assert all(torch.equal(live.state_dict()[n], tensor) for n, tensor in wanted.items()) == SPLIT[name]


def test_the_best_weights_come_back(tmp_path: Path) -> None:
    saved, live = made("mixtral", 1), made("mixtral", 2)
    saved.save_pretrained(tmp_path)
    run = made_up.run(model=live)
    run.state.best_model_checkpoint = str(tmp_path)
    assert load_best(run)
    assert all(torch.equal(live.state_dict()[n], tensor) for n, tensor in saved.state_dict().items())


def test_adapters_have_peft_s_names(tmp_path: Path) -> None:
    model = get_peft_model(made("mixtral", 1), LoraConfig(r=2, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    assert not stored_otherwise(model, tmp_path)
    assert len(tensors_by_parameter(model, tmp_path)) == 2 * model.config.num_hidden_layers
