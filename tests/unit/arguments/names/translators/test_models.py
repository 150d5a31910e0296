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


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("True", {"flash_attn": "True"}),
        ("fa2", {"flash_attn": "True"}),
        ("fa3", {"attn_implementation": "flash_attention_3"}),
        ("sdpa", {"attn_implementation": "sdpa"}),
        ("disabled", {"attn_implementation": "eager"}),
        ("auto", {}),
    ],
)
def test_names_of_kernels_behind_flash_attn(value: str, found: dict[str, str]) -> None:
    assert translated(models.flash_attn, ask(f"flash_attn={value}")) == found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("finetuning_type=lora", {"use_peft": "True"}),
        ("finetuning_type=full", {"use_peft": "False"}),
        ("finetuning_type=freeze", {"use_peft": "False", "freeze_trainable_layers": "2"}),
    ],
)
def test_kinds_of_fine_tuning(command: str, expected: dict[str, str]) -> None:
    assert translated(models.finetuning, ask(command)) == expected


def test_freeze_tuning_keeps_the_layers_that_were_named() -> None:
    named = ask("finetuning_type=freeze", "freeze_trainable_layers=8")
    assert translated(models.finetuning, named) == {"use_peft": "False"}
    with pytest.raises(ArgumentError, match="use lora, freeze or full"):
        models.finetuning(ask("finetuning_type=oft"))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pissa_init=True", {"init_lora_weights": "pissa_niter_16"}),
        ("pissa_init=True pissa_iter=4", {"init_lora_weights": "pissa_niter_4"}),
        ("pissa_init=True pissa_iter=-1", {"init_lora_weights": "pissa"}),
        ("pissa_iter=4", {}),
    ],
)
def test_pissa_of_llama_factory(command: str, expected: dict[str, str]) -> None:
    assert translated(models.pissa, ask(command)) == expected


def test_adapters_of_axolotl() -> None:
    assert translated(models.axolotl_adapter, ask("adapter=lora")) == {"use_peft": "True"}
    assert translated(models.axolotl_adapter, ask("adapter=qlora")) == {"use_peft": "True", "qlora": "True"}
    with pytest.raises(ArgumentError, match="use lora or qlora"):
        models.axolotl_adapter(ask("adapter=llama-adapter"))
    assert translated(models.quant_bits, ask("quantization_bit=8")) == {"load_in_8bit": "True"}
