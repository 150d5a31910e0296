"""A folder that holds no model is refused with what it holds, and what to give instead."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.preflight.said import problems


@pytest.mark.parametrize(
    "model, part",
    [
        ("./nowhere", "there is no folder ./nowhere"),
        ("/no/such/folder", "there is no folder"),
        ("tests", "config.json"),
    ],
)
def test_model_folders(model: str, part: str) -> None:
    assert part in problems(model)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "the-base"}')
    message = problems(tmp_path)
    assert "holds a LoRA adapter" in message
    assert f"merge_peft_adapter.py --base_model_name_or_path the-base --peft_model_path {tmp_path}" in message


def test_what_is_no_model_names_those_within(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "checkpoint-5")
    assert (
        f"has no config.json, so it is no model folder\n  where: --model_name_or_path\n  to do: give {tmp_path}/checkp"
        in (problems(tmp_path))
    )
    (tmp_path / "empty").mkdir()
    assert "give a folder with config.json, weights and tokenizer" in problems(tmp_path / "empty")


def test_a_folder_without_a_model_is_said_once(tmp_path: Path) -> None:
    assert "problems" not in problems(tmp_path, "--packing")
