"""Quantised bases that would train wrongly are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.arguments import parse_arguments
from hftune.preflight.quantisation_checks import check_quantisation, check_stored_quantised

ZERO3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'


def problems(*flags: str, model: Path = Path("model")) -> str:
    model_args, _, adapter_args, training_args = parse_arguments(
        "sft", ["--model_name_or_path", str(model), "--output_dir", "o", *flags]
    )
    found = [*check_quantisation(adapter_args, training_args), *check_stored_quantised(model_args, adapter_args)]
    return "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--qlora", "--load_in_8bit", "--deepspeed", ZERO3), "8-bit weights under ZeRO-3"),
        (("--qlora", "--bnb_4bit_quant_storage", "int4"), "cannot be kept as 'int4'"),
        (
            ("--qlora", "--bnb_4bit_quant_storage", "float32", "--bf16", "--deepspeed", ZERO3),
            "would cast packed weights kept as float32 to bfloat16",
        ),
        (("--qlora", "--gguf_file", "x.gguf"), "cannot quantise them on the way"),
    ],
)
def test_refused(flags: tuple[str, ...], said: str) -> None:
    assert said in problems(*flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--qlora",),
        ("--qlora", "--load_in_8bit"),
        ("--qlora", "--deepspeed", ZERO3),
        ("--qlora", "--bf16", "--deepspeed", ZERO3),
        ("--qlora", "--bnb_4bit_quant_storage", "float32", "--bf16"),
        ("--qlora", "--bnb_4bit_quant_storage", "bfloat16", "--bf16", "--deepspeed", ZERO3),
    ],
)
def test_right(flags: tuple[str, ...]) -> None:
    assert problems(*flags) == ""


@pytest.mark.parametrize(
    ("stored", "flags", "said"),
    [
        ({"quant_method": "gptq", "bits": 4}, ("--qlora",), "quantised with gptq, which hftune does not train on"),
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
