"""Precision, quantised bases, adapters and attention in other tools' words."""

from __future__ import annotations

import pytest

from hftune.arguments.names.translators import models
from hftune.errors import ArgumentError
from tests.unit.arguments.names.translators.questions import ask, translated


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("compute_type=bf16", {"bf16": "True"}),
        ("compute_type=fp16", {"bf16": "False", "fp16": "True"}),
        ("compute_type=wint8", {"load_in_8bit": "True"}),
        ("compute_type=nf4", {"load_in_4bit": "True", "bnb_4bit_quant_type": "nf4"}),
        ("weight_quantize_algo=weight_only_int8", {"load_in_8bit": "True"}),
        ("compute_type=bf16 weight_quantize_algo=nf4", {"bf16": "True"}),  # dropped there as well, and said
        ("compute_type=nf4 weight_quantize_algo=nf4", {"load_in_4bit": "True", "bnb_4bit_quant_type": "nf4"}),
    ],
)
def test_compute_types(command: str, expected: dict[str, str]) -> None:
    assert translated(models.compute_type, ask(command)) == expected


@pytest.mark.parametrize(
    "command",
    ["compute_type=wint4/8", "compute_type=fp8", "weight_quantize_algo=fp8linear", "compute_type=wint8 "
     "weight_quantize_algo=nf4"],
)  # fmt: skip
def test_compute_types_without_a_counterpart(command: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be used"):
        models.compute_type(ask(command))


@pytest.mark.parametrize(
    ("command", "others", "alpha"),
    [
        ("lora_alpha=32", "", "32"),
        ("lora_alpha=16.0", "", "16"),
        ("lora_alpha=-1", "lora_r=32", "64"),
        ("lora_alpha=-1", "lora_r=32 use_rslora=True", "4"),
        ("lora_alpha=128 rslora_plus=True", "lora_r=32", "4"),
        ("lora_alpha=128 rslora_plus=False", "lora_r=32", "128"),
    ],
)
def test_strength_of_adapters(command: str, others: str, alpha: str) -> None:
    assert translated(models.strength, ask(command, others))["lora_alpha"] == alpha


def test_names_of_modules() -> None:
    assert translated(models.targets, ask("target_modules=all-linear")) == {"lora_target_modules": "all"}
    assert translated(models.targets, ask("target_modules=q_proj,linear_fc1")) == {
        "lora_target_modules": "q_proj gate_proj up_proj"
    }
    with pytest.raises(ArgumentError, match="all-router"):
        models.targets(ask("target_modules=all-router,all-linear"))


def test_attention() -> None:
    assert translated(models.attention_backend, ask("attention_backend=flash")) == {"flash_attn": "True"}
    assert translated(models.attention_backend, ask("attention_backend=auto")) == {}
    assert translated(models.attention_backend, ask("attention_backend=flash_3")) == {
        "attn_implementation": "flash_attention_3"
    }
    with pytest.raises(ArgumentError, match="--attn_implementation"):
        models.attention_backend(ask("attention_backend=fast"))
