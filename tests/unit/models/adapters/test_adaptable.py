"""`--lora_target_modules all` leaves out what an adapter cannot change."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from peft import get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn

from hftune.arguments.adapter import AdapterArguments
from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.models.adapters.adaptable import unadaptable, without_effect
from hftune.models.adapters.lora_config import adapted_parameters, experts, inject, lora_config
from hftune.models.adapters.parameter_report import report_targets
from hftune.models.structure import decoder_layers, routers_of
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


MIXTURES = ("mixtral", "qwen3_moe", "gpt_oss", "llama4_text", "granitemoe", "jamba")
ALL = {"use_peft": True, "lora_target_modules": ["all"]}


@pytest.mark.parametrize("model_type", MIXTURES)
def test_all_means_experts_and_no_routers_in_every_mixture(model_type: str) -> None:
    model = model_of(model_type)
    stacked, routers = set(experts(model)), routers_of(model)
    linear = {name for name, module in model.named_modules() if type(module) is nn.Linear}
    linear -= {"lm_head", *unadaptable(model)}
    linear = {name for name in linear if not any(model.get_submodule(name) in router.modules() for router in routers)}
    assert stacked and routers
    adapted = inject(model, lora_config(model, AdapterArguments(**ALL)))
    names = {name for name, _ in adapted.base_model.model.named_modules()}
    assert {one.replace(".base_layer", "") for one in adapted_parameters(adapted.base_model.model)} == stacked
    assert {name.removesuffix(".lora_A") for name in names if name.endswith(".lora_A")} >= linear
    assert not any(isinstance(part, LoraLayer) for router in routers for part in router.modules())


def test_exclusions_hold_for_experts_too() -> None:
    model = model_of("gpt_oss")
    for option in ({}, {"lora_dropout": 0.1}, {"use_dora": True}):
        config = lora_config(model, AdapterArguments(**ALL, exclude_modules=["experts"], **option))
        assert not config.target_parameters
    for option in ({"lora_dropout": 0.1}, {"use_dora": True}):
        with pytest.raises(ArgumentError, match="neither DoRA nor dropout"):
            lora_config(model, AdapterArguments(**ALL, **option))


def test_a_router_is_adapted_where_it_is_named() -> None:
    model = model_of("qwen3_moe")
    args = AdapterArguments(**ALL, lora_target_parameters=["mlp.gate.weight"])
    adapted = inject(model, lora_config(model, args))
    assert "model.layers.0.mlp.gate.weight" in adapted_parameters(adapted.base_model.model)


def test_modules_with_an_adapter_are_counted_by_kind() -> None:
    model, args = model_of("mixtral"), AdapterArguments(**ALL)
    report_targets(inject(model, lora_config(model, args)), args)
    assert "modules with an adapter: attention 8, experts 4" in notices()
    assert "2 linear modules get no adapter: model.layers.*.mlp.gate" in notices()


class MambaMixer(nn.Module):
    """As transformers' own names its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj, self.dt_proj, self.x_proj, self.out_proj = (nn.Linear(2, 2) for _ in range(4))


class Child(MambaMixer):
    """What it inherits is read, too."""


def test_classes_by_their_names() -> None:
    model = nn.Sequential(MambaMixer(), Child(), nn.Linear(2, 2))
    assert unadaptable(model) == [f"{at}.{name}_proj" for at in (0, 1) for name in ("dt", "x", "out")]
    assert without_effect(model) == {
        "0.dt_proj": "MambaMixer reads its weight and does not call it",
        "1.dt_proj": "Child reads its weight and does not call it",
    }


def test_named_modules_are_refused_by_name() -> None:
    model = model_of("jamba")
    first = next(iter(without_effect(model)))
    for asked in ({"lora_target_modules": ["dt_proj", "in_proj"]}, {"target_regex": r".*(dt|in)_proj"}):
        with pytest.raises(ArgumentError, match=rf"{first} cannot be adapted: JambaMambaMixer reads its weight"):
            lora_config(model, AdapterArguments(use_peft=True, **asked))
        lora_config(model, AdapterArguments(use_peft=True, exclude_modules=["mamba.dt_proj"], **asked))


def test_one_notice_says_what_is_left_out() -> None:
    args = AdapterArguments(use_peft=True)
    model = model_of("nemotron_h")
    assert without_effect(model) == {}, "read by a kernel alone"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report_targets(inject(model, lora_config(model, args)), args)
    assert any("mixer.out_proj" in text and "get no adapter" in text for text in notices())


def test_layers_that_the_config_counts_otherwise() -> None:
    """LongCat's config counts each layer as two: flags that name layers mean those that are there."""
    model = model_of("longcat_flash")
    assert all("LongcatFlashTopkRouter reads" in why for why in without_effect(model).values())
    assert len(decoder_layers(model)) == 2 < model.config.num_hidden_layers
