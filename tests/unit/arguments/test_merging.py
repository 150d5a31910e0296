"""The arguments of merging: what every parser of hftune says, and values that a merge takes in other forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.arguments.merging import parse_merge_arguments
from hftune.errors import ArgumentError


def test_switches_choices_lists_and_aliases() -> None:
    flags = ["--lora_model", "a", "b", "--base_model", "m", "--output_dir=o", "--overwrite_output_dir"]
    args = parse_merge_arguments([*flags, "--torch_dtype", "bfloat16", "--verify", "False"])
    assert args.adapters == ["a", "b"] and args.base_model_name_or_path == "m" and args.output_dir == "o"
    assert args.overwrite_output_dir is True and args.trust_remote_code is False
    assert args.dtype == "bfloat16" and args.verify == "false"
    assert parse_merge_arguments(["--verify"]).verify == "true"
    assert parse_merge_arguments([]).verify == "auto"


def test_a_yaml_file_and_what_wins(tmp_path: Path) -> None:
    file = tmp_path / "merge.yaml"
    file.write_text("peft_model_path: [a, b]\nverify: false\nadapter_weights: [0.5, 0.25]\ndtype: float32\n")
    args = parse_merge_arguments(["--config", str(file), "--dtype", "float16"])
    assert args.adapters == ["a", "b"] and args.adapter_weights == "0.5,0.25"
    assert args.dtype == "float16" and args.verify == "false"


def test_all_problems_together() -> None:
    with pytest.raises(ArgumentError) as error:
        parse_merge_arguments(["--output_dri", "o", "--dtype", "int3", "--trust_remote_code", "perhaps"])
    text = str(error.value)
    assert "3 problems" in text and "did you mean --output_dir?" in text
    assert "one of: auto, bfloat16, float16, float32" in text and "--trust_remote_code cannot be 'perhaps'" in text


def test_a_name_without_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    from hftune.logging import notices

    parse_merge_arguments(["--lora_model", "a", "--resize_emb"])
    assert any("--resize_emb has no effect" in said for said in notices())


def test_help(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        parse_merge_arguments(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "Also --lora_model, --peft_path, --adapters, --adapter_name_or_path." in " ".join(said.split())
    assert "--merge_base {original,dequantized}" in said and "command line" not in said
