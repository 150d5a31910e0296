"""An adapter on a loaded model: the same wherever it is drawn, and flags that a saved one overrules are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import get_peft_model_state_dict

from hftune.distributed import zero
from hftune.models.adapters import lora
from hftune.models.adapters.lora import add_lora
from tests.unit.models.adapting import arguments, load


def test_a_fresh_adapter_depends_on_the_seed_alone(tiny_model: Path) -> None:
    drawn = []
    for before, seed in ((1, "7"), (2, "7"), (1, "8")):
        _, adapter_args, training_args = arguments(tiny_model, "--seed", seed)
        model = load(tiny_model)
        torch.manual_seed(before)
        drawn.append(get_peft_model_state_dict(add_lora(model, adapter_args, training_args)))
    same, other = drawn[1:]
    assert all(torch.equal(value, same[name]) for name, value in drawn[0].items())
    assert not all(torch.equal(value, other[name]) for name, value in drawn[0].items())


def test_flags_that_a_saved_adapter_overrules_are_named(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(lora, "notice", heard.append)
    _, adapter_args, training_args = arguments(tiny_model, "--lora_r", "4")
    add_lora(load(tiny_model), adapter_args, training_args).save_pretrained(tmp_path)
    flags = ("--peft_path", str(tmp_path), "--lora_r", "8", "--lora_alpha", "64", "--lora_target_modules", "q_proj")
    _, adapter_args, training_args = arguments(tiny_model, *flags)
    add_lora(load(tiny_model), adapter_args, training_args)
    said = [line for line in heard if "has no effect" in line]
    assert [line.split()[0] for line in said] == ["--lora_r", "--lora_alpha", "--lora_target_modules"], said


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), []),
        (("--use_dora", "True", "--lora_target_modules", "q_proj"), ["q_proj.weight"]),
        (("--trainable_token_indices", "3"), ["embed_tokens.token_adapter.weight"]),
        (("--lora_target_parameters", "q_proj.weight", "--lora_target_modules", "none"), ["q_proj.weight"]),
    ],
)
def test_zero_3_is_told_what_is_read_without_a_call(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: list[str]
) -> None:
    told: list[int] = []
    monkeypatch.setattr(zero, "register_external_parameter", lambda module, parameter: told.append(id(parameter)))
    _, adapter_args, training_args = arguments(tiny_model, *flags)
    monkeypatch.setattr(type(training_args), "zero_stage", 3)
    adapted = add_lora(load(tiny_model), adapter_args, training_args)
    names = {id(parameter): name for name, parameter in adapted.named_parameters()}
    found = {names[each].replace(".base_layer", "").replace(".original_module", "") for each in told if each in names}
    for end in expected:
        assert any(name.endswith(end) for name in found), found
    assert bool(told) is bool(expected)
