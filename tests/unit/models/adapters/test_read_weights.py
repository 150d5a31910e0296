"""Which linear modules are read past their adapter, told by the class of their owner."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from hftune.arguments.adapter import AdapterArguments
from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.models.adapters.adaptable import unadaptable, without_effect
from hftune.models.adapters.lora_config import inject, lora_config
from hftune.models.adapters.parameter_report import report_targets
from tests.unit.models.adapters.test_adaptable import model_of


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


def test_mambas_of_each_kind() -> None:
    """On the ways of transformers' own code: what an adapter has no effect on, and what only a kernel reads."""
    model = model_of("jamba")
    assert {name.rsplit(".", 1)[-1] for name in unadaptable(model)} == {"dt_proj"}
    model = model_of("nemotron_h")
    assert {name.rsplit(".", 2)[-2:] == ["mixer", "out_proj"] for name in unadaptable(model)} == {True}
    assert without_effect(model) == {}
    assert all("LongcatFlashTopkRouter reads" in why for why in without_effect(model_of("longcat_flash")).values())


def test_no_gradient_comes_to_what_is_always_read() -> None:
    """A witness: with an adapter on everything, these are the ones that training does not change."""
    from peft import LoraConfig, get_peft_model

    model = model_of("jamba")
    useless = without_effect(model)
    adapted = get_peft_model(model, LoraConfig(target_modules=["dt_proj", "x_proj", "in_proj", "out_proj"]))
    ids = torch.arange(10, 20)[None]
    adapted(input_ids=ids, labels=ids).loss.backward()
    silent = {
        name.split(".lora_B")[0].removeprefix("base_model.model.")
        for name, parameter in adapted.named_parameters()
        if ".lora_B" in name and parameter.grad is None
    }
    assert silent == set(useless) and silent


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report_targets(inject(model, lora_config(model, args)), args)
    assert any("mixer.out_proj" in text and "get no adapter" in text for text in notices())


def test_layers_that_the_config_counts_otherwise() -> None:
    """LongCat's config counts each layer as two: flags that name layers mean those that are there."""
    from hftune.models.adapters.freezing import plan_freezing
    from hftune.models.structure import decoder_layers

    model = model_of("longcat_flash")
    assert len(decoder_layers(model)) == 2 < model.config.num_hidden_layers
    chosen = plan_freezing(model, AdapterArguments(freeze_trainable_layers=1))
    named = {name for name, parameter in model.named_parameters() if id(parameter) in chosen}
    assert named and all(name.startswith("model.layers.1.") for name in named)
    config = lora_config(model, AdapterArguments(use_peft=True, layers_to_transform=[1]))
    assert all(name.startswith("model.layers.1.") for name in config.target_modules or ["none"])
    with pytest.raises(ArgumentError, match="no layer 2"):
        lora_config(model, AdapterArguments(use_peft=True, layers_to_transform=[2]))
