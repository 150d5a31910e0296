"""A folder without a model, and an adapter of another base, are refused with what they hold."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from hftune.preflight.model_folder import check_adapter_fits
from hftune.preflight.rules.folders import check_folders
from tests.architectures import make_model
from tests.unit.preflight import said

problems = partial(said.problems, rules=(check_folders,))


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
    assert "problems" not in said.problems(tmp_path, "--packing")


SIZES = {"q_proj": (6, 4), "down_proj": (4, 8)}


def base(folder: Path, prefix: str = "model.") -> str:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    tensors = {f"{prefix}layers.0.{name}.weight": torch.zeros(size) for name, size in SIZES.items()}
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def adapter(folder: Path, within: str = "model.", **inner: tuple[int, int]) -> str:
    """LoRA of rank 2; `inner`: (out, in) of each module."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    tensors = {}
    for name, (out, size) in inner.items():
        module = f"base_model.model.{within}layers.0.{name}"
        tensors |= {f"{module}.lora_A.weight": torch.zeros(2, size), f"{module}.lora_B.weight": torch.zeros(out, 2)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def misfits(one: str, other: str) -> list[str]:
    return [str(problem) for problem in check_adapter_fits(one, other, "--peft_path")]


@pytest.mark.parametrize("prefix", ["model.", "", "model.language_model.", "outer.model."])
def test_one_that_fits(tmp_path: Path, prefix: str) -> None:
    """GPT-2's files name `h.0` what the model calls `transformer.h.0`."""
    within = prefix if prefix.startswith("model.") else "model."
    assert misfits(base(tmp_path / "base", prefix), adapter(tmp_path / "a", within, **SIZES)) == []
    assert misfits(base(tmp_path / "other", prefix), adapter(tmp_path / "b", within, q_proj=(6, 5))) != []


def test_one_that_does_not(tmp_path: Path) -> None:
    model = base(tmp_path / "base")
    (problem,) = misfits(model, adapter(tmp_path / "a", q_proj=(6, 5)))
    assert "q_proj is (6, 4) in the base, its adapter has (2, 5)" in problem and "more" not in problem
    (problem,) = misfits(model, adapter(tmp_path / "b", q_proj=(7, 5)))
    assert "(and 1 more)" in problem
    (problem,) = misfits(model, adapter(tmp_path / "c", v_proj=(4, 4)))
    assert "layers.0.v_proj is not in the base" in problem and "--peft_path" in problem


def test_experts_are_left_to_peft_and_a_base_elsewhere_is_not_compared(tmp_path: Path) -> None:
    """Files hold an expert a tensor, models all of a layer in one."""
    folder = adapter(tmp_path / "a", "model.", **{"experts.0.up": (9, 9)})
    assert misfits(base(tmp_path / "base"), folder) == misfits(str(tmp_path / "nowhere"), folder) == []


def test_a_folder_without_an_adapter(tmp_path: Path) -> None:
    (problem,) = misfits(base(tmp_path / "base"), str(tmp_path))
    assert "adapter" in problem and "--peft_path" in problem


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_modules_that_have_another_name_on_disk_are_found(tmp_path: Path, name: str) -> None:
    """Mixtral's files say `block_sparse_moe.gate` where the model says `mlp.gate`."""
    model = make_model(name, tmp_path / "base")
    parameters = dict(AutoModelForCausalLM.from_pretrained(model).named_parameters())
    router = "mlp.gate"
    experts, size = parameters[f"model.layers.0.{router}.weight"].shape
    assert misfits(str(model), adapter(tmp_path / "fits", **{router: (experts, size)})) == []
    assert misfits(str(model), adapter(tmp_path / "other", **{router: (experts, size + 1)})) != []
