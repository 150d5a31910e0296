"""Quantised bases that would train wrongly are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.models.loading import quantisation as stored_quantisation
from hftune.preflight.rules import quantisation
from hftune.preflight.rules.quantisation import check_quantisation
from tests.unit.preflight.said import problems as of_rules

ZERO3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'


def problems(*flags: str, model: Path | str = "model") -> str:
    return of_rules(model, *flags, rules=(check_quantisation,))


def test_refused() -> None:
    assert "8-bit weights under ZeRO-3" in problems("--qlora", "--load_in_8bit", "--deepspeed", ZERO3)


@pytest.mark.parametrize(
    "flags",
    [
        ("--qlora",),
        ("--qlora", "--load_in_8bit"),
        ("--qlora", "--deepspeed", ZERO3),
        ("--qlora", "--bf16", "--deepspeed", ZERO3),
        ("--qlora", "--bnb_4bit_quant_storage", "float32", "--bf16"),
        *(
            ("--qlora", "--bnb_4bit_quant_storage", kept, "--bf16", "--deepspeed", ZERO3)
            for kept in ("bfloat16", "uint8")
        ),
    ],
)
def test_right(flags: tuple[str, ...]) -> None:
    assert problems(*flags) == ""


@pytest.mark.parametrize(
    ("stored", "flags", "said"),
    [
        ({"quant_method": "hqq", "bits": 4}, ("--qlora",), "is stored in hqq, which hftune does not train on"),
        ({"quant_method": "gptq", "bits": 4}, ("--qlora",), "is stored in gptq, which needs"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, (), "add --use_peft --load_in_4bit"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("--use_peft",), "add --use_peft --load_in_8bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("--qlora",), ""),
        (None, (), ""),
    ],
)
def test_checkpoints_that_are_quantised(stored: dict | None, flags: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": stored}))
    found = problems(*flags, model=tmp_path)
    assert said in found if said else found == ""


def test_weights_that_stay_packed_are_not_partitioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_quantisation, "find_spec", lambda name: name)
    config = {"model_type": "llama", "quantization_config": {"quant_method": "awq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert problems("--use_peft", model=tmp_path) == ""
    assert "ZeRO-3 does not partition" in problems("--use_peft", "--deepspeed", ZERO3, model=tmp_path)


def test_fp8_without_a_gpu_or_torchao_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantisation, "has_torchao", lambda: False)
    said = problems("--fp8", "rowwise", "--use_cpu", "True", "--bf16", "True")
    assert "FP8 (rowwise) needs a GPU of compute capability 9.0" in said
    assert "FP8 is torchao's, which is not installed" in said


def test_what_fp8_does_not_go_with() -> None:
    assert "does not go with" not in problems("--fp8", "tensorwise", "--bf16", "True")
    assert "--fp8 does not go with --use_peft" in problems("--fp8", "tensorwise", "--bf16", "True", "--use_peft")
