"""Freezing: which parameters are meant, that nothing else changes, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.models.adapters.parameter_report import kind_of
from hftune.models.adapters.preparation import add_adapter
from tests.unit.models.adapting import parsed

IDS = torch.arange(3, 35).reshape(2, 16)
ATTENTION = {f"self_attn.{name}_proj" for name in "qkvo"}
MLP = {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
NORMS = {"input_layernorm", "post_attention_layernorm"}


def layer(number: int, modules: set[str]) -> set[str]:
    return {f"model.layers.{number}.{module}.weight" for module in modules}


LAYER0, LAYER1 = (layer(number, ATTENTION | MLP | NORMS) for number in (0, 1))
ENDS = {"model.embed_tokens.weight", "model.norm.weight"}  # the tiny model's head is its embeddings
ALL = LAYER0 | LAYER1 | ENDS


def frozen(model: Path, *flags: str) -> torch.nn.Module:
    _, _, adapter_args, training_args = parsed("sft", model, "--gradient_checkpointing", "True", *flags)
    return add_adapter(AutoModelForCausalLM.from_pretrained(model), adapter_args, training_args)


@pytest.mark.parametrize(
    "flags, trained",
    [
        ([], ALL),
        (["--freeze_parameters", "model.embed_tokens", "model.layers.0"], LAYER1 | {"model.norm.weight"}),
        (["--freeze_parameters", "model.layers"], ENDS),
        (["--freeze_parameters", "lm_head"], ALL - {"model.embed_tokens.weight"}),
        (["--freeze_parameters_regex", r"mlp|norm"], layer(0, ATTENTION) | layer(1, ATTENTION)
         | {"model.embed_tokens.weight"}),
        # 17,984 of 92,032 elements, 19.5 %, are embeddings: the first parameter, and only as a whole
        (["--freeze_parameters_ratio", "0.2"], ALL - {"model.embed_tokens.weight"}),
        (["--freeze_parameters_ratio", "0.19"], ALL),
        (["--freeze_parameters_ratio", "1", "--trainable_parameters", "lm_head"], {"model.embed_tokens.weight"}),
        (["--freeze_parameters_ratio", "1", "--trainable_parameters_regex", r"1\.mlp"], layer(1, MLP)),
        (["--freeze_parameters", "model.", "--trainable_parameters", "model.norm"], {"model.norm.weight"}),
    ],
)  # fmt: skip
def test_only_what_should_change_changes(tiny_model: Path, flags: list[str], trained: set[str]) -> None:
    model = frozen(tiny_model, *flags)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    model.train()
    for reentrant in (True, False):
        # Recomputed blocks get a gradient also where nothing below them is trained.
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == trained


@pytest.mark.parametrize(
    "flags, part",
    [
        (["--freeze_parameters", "layers.0"], "no parameter's name begins with it"),
        (["--freeze_parameters_regex", "query"], "no parameter's name holds a match of it"),
        (["--freeze_parameters_regex", "(q"], "no regular expression"),
        (["--freeze_parameters_ratio", "1"], "every parameter is frozen"),
        (["--freeze_parameters_ratio", "1", "--trainable_parameters", "heads"], "begins with it"),
    ],
)
def test_what_matches_nothing_is_an_error(tiny_model: Path, flags: list[str], part: str) -> None:
    with pytest.raises(ArgumentError, match=part):
        frozen(tiny_model, *flags)


def test_a_prefix_that_ends_in_a_number(tiny_model: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(tiny_model).config
    config.num_hidden_layers = 12
    model = AutoModelForCausalLM.from_config(config)
    _, _, adapter_args, training_args = parsed("sft", "m", "--freeze_parameters", "model.layers.1")
    add_adapter(model, adapter_args, training_args)
    assert not model.model.layers[10].mlp.up_proj.weight.requires_grad
    assert any("--freeze_parameters model.layers.1 also means model.layers.10." in said for said in notices())


def test_kinds() -> None:
    kinds = {
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight": "adapter",
        "model.layers.0.self_attn.q_norm.weight": "norms",
        "model.layers.0.mlp.experts.gate_up_proj": "experts",
        "transformer.h.0.attn.c_attn.weight": "attention",
        "transformer.wte.weight": "embeddings",
        "score.weight": "head",
        "model.rotary": "other",
    }
    assert {name: kind_of(name) for name in kinds} == kinds
