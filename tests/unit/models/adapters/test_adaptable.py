"""`--lora_target_modules all` leaves out what an adapter cannot change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import get_peft_model
from torch import nn

from hftune.arguments.adapter import AdapterArguments
from hftune.models.adapters.adaptable import unadaptable
from hftune.models.adapters.lora_config import lora_config
from tests.table.tiny import model_class, tiny_config


def model_of(model_type: str) -> Any:
    torch.manual_seed(0)
    return model_class(model_type)(tiny_config(model_type))


@pytest.mark.parametrize(("model_type", "ends"), [("mamba2", {"out_proj"}), ("jamba", {"dt_proj"})])
def test_what_kernels_read_past_an_adapter(model_type: str, ends: set[str]) -> None:
    model = model_of(model_type)
    assert {name.rsplit(".", 1)[-1] for name in unadaptable(model)} == ends
    adapted = get_peft_model(model, lora_config(model, AdapterArguments(use_peft=True)))
    with_adapter = {name.split(".lora_A")[0] for name, _ in adapted.named_parameters() if ".lora_A" in name}
    assert any(name.endswith("in_proj") for name in with_adapter)
    assert not any(name.endswith(tuple(f"mixer.{end}" for end in ends)) for name in with_adapter)
    assert not any(name.endswith(tuple(f"mamba.{end}" for end in ends)) for name in with_adapter)


def test_a_router_that_returns_two_tensors() -> None:
    model = model_of("llama4_text")
    assert unadaptable(model) and all(name.endswith("feed_forward.router") for name in unadaptable(model))
    config = lora_config(model, AdapterArguments(use_peft=True, exclude_modules=["q_proj"]))
    assert config.exclude_modules == {"q_proj", "feed_forward.router"}
    ids = torch.arange(10, 20)[None]
    assert get_peft_model(model, config)(input_ids=ids, labels=ids).loss.isfinite()


def test_a_linear_of_another_class_that_only_projects() -> None:
    assert unadaptable(model_of("falcon")) == []
    assert unadaptable(nn.Sequential(nn.Linear(2, 2))) == []
