"""One case a rule: the message names the flag and the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hftune.checkpoints.manifest import write_manifest
from hftune.preflight.rules.rl import check_rewards
from tests.unit.preflight.said import problems

ZERO3 = '{"zero_optimization": {"stage": 3}}'


def test_nothing_to_say(tiny_model: Path) -> None:
    assert problems(tiny_model) == ""


@pytest.mark.parametrize(
    "flags, given, parts",
    [
        ([], {"output_dir": None}, ["no output folder", "--output_dir"]),
        ([], {"train_file_dir": None}, ["no training data", "--train_file_dir"]),
        ([], {"validation_file_dir": "nowhere"}, ["no file or folder nowhere", "--validation_file_dir"]),
        (
            ["--do_eval", "True"],
            {"train_file_dir": None, "validation_file_dir": "."},
            ["no training", "hftune evaluate"],
        ),
        (["--do_eval", "True"], {}, ["no records are held out", "--do_eval or --do_train False"]),
        ([], {"train_file_dir": "tests,nowhere.jsonl#5"}, ["no file or folder nowhere.jsonl", "--train_file_dir"]),
        ([], {"train_file_dir": ".#zero"}, ["'zero' after # is not a number of records", "--train_file_dir"]),
        ([], {"train_file_dir": ".,tests", "train_dataset_prob": "1"}, ["1 weights for 2 sources"]),
        ([], {"columns": "question"}, ["question is no list of columns", "--columns", "OURS=YOURS"]),
        ([], {"dummy_data": "10"}, ["2 kinds of training data at once", "--train_file_dir, --dummy_data"]),
        (["--load_in_4bit"], {}, ["cannot be trained in full", "--use_peft"]),
        (["--peft_path", "nowhere"], {}, ["there is no folder nowhere", "--peft_path"]),
    ],
)
def test_a_rule_each(tiny_model: Path, flags: list[str], given: dict[str, Any], parts: list[str]) -> None:
    message = problems(tiny_model, *flags, **given)
    for part in parts:
        assert part in message


def whole_checkpoint(output: Path, step: int) -> None:
    """What `auto` would take up."""
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    save_file({"weight": torch.ones(2)}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    torch.save({}, folder / "optimizer.pt")


def test_a_run_that_could_be_resumed_is_announced(tiny_model: Path, tmp_path: Path) -> None:
    """`auto` would later take up the checkpoints of the run before, whatever the new one learns."""
    output = tmp_path / "out"
    assert problems(tiny_model, output_dir=output) == ""
    for step in (5, 20):
        whole_checkpoint(output, step)
    (output / "checkpoint-30").mkdir()  # not whole: nothing takes it up
    said = problems(tiny_model, output_dir=output)
    assert f"{output} holds a run that reached checkpoint-20" in said and "--output_dir" in said
    assert "--resume_from_checkpoint auto" in said and "--resume_from_checkpoint none" in said
    for way_out in (["--resume_from_checkpoint", "none"], ["--overwrite_output_dir"]):
        assert problems(tiny_model, *way_out, output_dir=output) == ""
    (output / "checkpoint-20" / "optimizer.pt").unlink()
    said = problems(tiny_model, output_dir=output)
    assert f"--warm_start {output}/checkpoint-20" in said and "--resume_from_checkpoint auto" not in said


@pytest.mark.parametrize(
    "given",
    [
        {"train_file_dir": "examples/data/sft,examples/data#5", "train_dataset_prob": "3,1", "mix_strategy": "under"},
        {"train_file_dir": "owner/name:en@train#5"},
        {"train_file_dir": None, "dataset_name": "name"},
        {"train_file_dir": None, "dummy_data": "100"},
        {"columns": "prompt=question"},
    ],
)
def test_sources_that_may_be_there(tiny_model: Path, given: dict[str, Any]) -> None:
    assert problems(tiny_model, **given) == ""


def test_all_problems_in_one_message(tiny_model: Path) -> None:
    message = problems("./nowhere", "--load_in_8bit", train_file_dir="nothing")
    assert message.startswith("3 problems, nothing was started:")


def test_rewards(tmp_path: Path) -> None:
    (nothing,) = check_rewards([], [])
    assert "add --reward_funcs accuracy format" in str(nothing) and "<think>...</think>" in str(nothing)
    (problem,) = check_rewards([], ["./outputs/rn"])
    assert "there is no folder ./outputs/rn" in str(problem)
    assert list(check_rewards(["module:function"], [])) == []
    write_manifest(tmp_path, {"status": "complete", "stage": "sft", "head": "causal_lm"})
    (problem,) = check_rewards([], [str(tmp_path)])
    assert "made by the sft stage and has no score head" in str(problem)
    write_manifest(tmp_path, {"status": "complete", "stage": "rm", "head": "score"})
    assert list(check_rewards([], [str(tmp_path)])) == []


def test_documents_that_cannot_be_kept_apart(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1}')
    assert problems(tmp_path, "--packing") == problems(tiny_model, "--packing") == ""
    kernel = ("--attn_implementation", "someone/kernel")
    said = problems(tiny_model, "--packing", *kernel, "--peft_path", "nowhere")
    assert "2 problems" in said and "keep packed documents apart" in said and "there is no folder nowhere" in said
    assert "needs a GPU" in problems(tiny_model, "--padding_free", "--attn_implementation", "flash_attention_2")
