"""Adapters that cannot be switched off, and those that a base cannot carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.arguments import parse_arguments
from hftune.errors import UserError
from hftune.preflight.checks import check_run


def problems(stage: str, model: Path, *flags: str) -> str:
    given = ["--model_name_or_path", str(model), "--train_file_dir", ".", "--output_dir", "out-that-is-not-there"]
    try:
        check_run(*parse_arguments(stage, [*given, "--use_peft", *flags]))
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "stage, flags, refused",
    [
        ("dpo", ["--lora_bias", "all"], True),
        ("dpo", ["--lora_bias", "lora_only"], True),
        ("dpo", [], False),
        ("sft", ["--lora_bias", "all"], False),
        ("rl", ["--lora_bias", "all", "--beta", "0.1"], True),
        ("rl", ["--lora_bias", "all"], False),
    ],
)
def test_trained_biases_leave_no_reference(tiny_model: Path, stage: str, flags: list[str], refused: bool) -> None:
    assert ("so there is no reference" in problems(stage, tiny_model, *flags)) == refused


def test_dora_needs_the_scales_of_its_base(tiny_model: Path) -> None:
    assert "--use_dora with --load_in_8bit" in problems("sft", tiny_model, "--load_in_8bit", "--use_dora")
    assert problems("sft", tiny_model, "--load_in_4bit", "--use_dora") == ""
