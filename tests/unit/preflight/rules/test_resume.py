"""A run resumes what the checkpoint was written of: the same stage, adapter, optimizer, model and groups."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.integrity import RECORD_NAME
from hftune.checkpoints.manifest import write_manifest
from hftune.preflight.facts import resolve
from hftune.preflight.rules import resume
from hftune.preflight.rules.resume import _COURSE, _IN_STATE, check_groups, check_resumed_settings
from hftune.weight_files import fingerprint

pytestmark = pytest.mark.long

LORA = ["--use_peft", "--lora_r", "8", "--target_modules", "all"]


def said(model: Path, folder: Path, *flags: str, stage: str = "sft") -> list[str]:
    argv = ["--model_name_or_path", str(model), "--output_dir", "out-that-is-not-there", "--train_file_dir", "."]
    argv += ["--resume_from_checkpoint", str(folder), *flags]
    return [str(problem) for problem in check_resumed_settings(resolve(stage, parse_arguments(stage, argv)))]


def checkpoint(model: Path, folder: Path, *flags: str, stage: str = "sft", base: Path | None = None) -> Path:
    """What a run with these flags leaves: weights or an adapter, a state, and a manifest of its arguments."""
    argv = ["--model_name_or_path", str(model), "--output_dir", "out", "--train_file_dir", ".", *flags]
    arguments = parse_arguments(stage, argv)
    network = AutoModelForCausalLM.from_pretrained(model)
    if arguments.adapter.use_peft:
        network = get_peft_model(network, LoraConfig(r=arguments.adapter.lora_r, target_modules="all-linear"))
    network.save_pretrained(folder)
    (folder / "trainer_state.json").write_text('{"global_step": 2, "epoch": 1.0}')
    torch.save({}, folder / "optimizer.pt")
    recorded = {name: vars(getattr(arguments, name)) for name in ("model", "data", "adapter", "training")}
    trained_on = {"name": str(base or model), "fingerprint": fingerprint(base or model)}
    write_manifest(
        folder, {"stage": stage, "arguments": json.loads(json.dumps(recorded, default=str)), "base": trained_on}
    )
    return folder


@pytest.fixture(scope="module")
def full(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tiny_model, tmp_path_factory.mktemp("full") / "checkpoint-2")


@pytest.fixture(scope="module")
def lora(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tiny_model, tmp_path_factory.mktemp("lora") / "checkpoint-2", *LORA)


@pytest.fixture
def own(full: Path, tmp_path: Path) -> Path:
    """A checkpoint of full training that the test may change."""
    return Path(shutil.copytree(full, tmp_path / "checkpoint-2"))


def test_the_same_command_resumes(tiny_model: Path, full: Path, lora: Path) -> None:
    assert said(tiny_model, full) == []
    # What may change while a run stands still.
    others = ["--logging_steps", "1", "--max_steps", "9", "--optim", "adamw_torch", "--lora_r", "99"]
    assert said(tiny_model, full, *others) == []
    assert said(tiny_model, lora, *LORA, "--lora_dropout", "0.1", "--freeze_parameters_ratio", "0.1") == []
    assert said(tiny_model, lora, *LORA[:3], "--target_modules", "all-linear") == []


def test_another_stage_is_refused(tiny_model: Path, full: Path, lora: Path) -> None:
    (problem,) = said(tiny_model, full, stage="dpo")
    assert "is a checkpoint of sft, and this is dpo" in problem and "resume it with run_sft.py" in problem
    assert f"--warm_start {full}" in problem
    # Distillation shares the rules of SFT, and nothing of its steps.
    (problem,) = said(tiny_model, lora, *LORA, "--teacher_model_name_or_path", str(tiny_model), stage="distill")
    assert "is a checkpoint of sft, and this is distill" in problem


def test_an_adapter_does_not_become_whole_weights(tiny_model: Path, full: Path, lora: Path) -> None:
    (problem,) = said(tiny_model, lora)
    assert "a run that trains an adapter, and this one trains all weights" in problem and "add --use_peft" in problem
    (problem,) = said(tiny_model, full, *LORA)
    assert "trains all weights, and this one trains an adapter" in problem and "leave out --use_peft" in problem


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--use_peft", "--lora_r", "4"], ["--lora_r 8 (now 4)"]),
        ([*LORA, "--lora_alpha", "3"], ["--lora_alpha 16 (now 3)", "where: --resume_from_checkpoint, --lora_alpha\n"]),
        ([*LORA[:3], "--target_modules", "q_proj", "v_proj"], ["--lora_target_modules all (now q_proj v_proj)"]),
        ([*LORA, "--use_dora"], ["--use_dora False (now True)"]),
        ([*LORA, "--modules_to_save", "lm_head"], ["--lora_modules_to_save none (now lm_head)"]),
        ([*LORA, "--optim", "adafactor"], ["--optim adamw_torch_fused (now adafactor)"]),
        ([*LORA, "--loraplus_lr_ratio", "4", "--use_rslora"], ["--loraplus_lr_ratio none (now 4.0)", "--use_rslora"]),
    ],
)
def test_what_the_state_is_of_stays(tiny_model: Path, lora: Path, flags: list[str], parts: list[str]) -> None:
    (problem,) = said(tiny_model, lora, *flags)
    for part in [*parts, "its state is of other parameters", "resume with what it was written with"]:
        assert part in problem


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--learning_rate", "1e-3"], ["--learning_rate 2e-05 (now 0.001)"]),
        (["--lr_scheduler_type", "constant", "--data_seed", "3"], ["(now constant)", "--data_seed none (now 3)"]),
        (["--warmup_steps", "9"], ["--warmup_steps 0.03 (now 9"]),
        (["--seed", "3"], ["--seed 42 (now 3)"]),
        (["--max_length", "99"], ["(now 99)", "where: --resume_from_checkpoint, --max_length\n"]),
        (["--rope_scaling", "linear", "--rope_factor", "2"], ["--rope_scaling none (now linear)", "--rope_factor"]),
        (["--num_samples_each_epoch", "7"], ["--num_samples_each_epoch none (now 7)"]),
    ],
)
def test_what_the_steps_that_are_left_compute_stays(
    tiny_model: Path, full: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], parts: list[str]
) -> None:
    (problem,) = said(tiny_model, full, *flags)
    for part in [*parts, "would not be those of that run", f"--warm_start {full}", "--resume_anyway"]:
        assert part in problem
    monkeypatch.setattr("hftune.logging._notices", told := [])
    assert said(tiny_model, full, *flags, "--resume_anyway") == []
    (line,) = (line for line in told if "is resumed all the same" in line)
    assert parts[0] in line and ("of the checkpoint stays" in line) == (flags[0] == "--learning_rate")


def test_every_argument_that_is_compared_is_one() -> None:
    known = {name for stage in ("pt", "sft", "rm", "dpo", "rl", "distill") for name in names_of(stage)}
    assert {name for own in _COURSE.values() for name in own} <= known
    assert {*_IN_STATE} <= {*_COURSE["training"]}


def names_of(stage: str) -> set[str]:
    argv = ["--model_name_or_path", "none", "--output_dir", "out", "--train_file_dir", ".", "--use_cpu", "True"]
    more = ["--teacher_model_name_or_path", "none"] if stage == "distill" else []
    return {name for group in parse_arguments(stage, [*argv, *more]) for name in vars(group)}


def test_what_was_frozen_stays_frozen(tiny_model: Path, full: Path) -> None:
    (problem,) = said(tiny_model, full, "--freeze_parameters", "model.embed_tokens")
    assert "--freeze_parameters none (now model.embed_tokens)" in problem


def test_paged_optimizers_keep_the_same_state(tiny_model: Path, tmp_path: Path) -> None:
    folder = checkpoint(tiny_model, tmp_path / "checkpoint-2", "--optim", "adamw_8bit")
    assert said(tiny_model, folder, "--optim", "paged_adamw_8bit") == []
    assert "--optim adamw_8bit (now adamw_torch)" in said(tiny_model, folder, "--optim", "adamw_torch")[0]


def test_an_adapter_that_is_trained_further_brings_its_settings(tiny_model: Path, lora: Path) -> None:
    assert said(tiny_model, lora, "--peft_path", str(lora), "--lora_r", "4") == []


def test_another_model_is_refused(tiny_model: Path, own: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    config = AutoModelForCausalLM.from_pretrained(tiny_model).config
    config.intermediate_size *= 2
    AutoModelForCausalLM.from_config(config).save_pretrained(other)
    (problem,) = said(other, own)
    assert f"is of another model than {other}" in problem and "down_proj" in problem
    # A vocabulary that has grown is no other model.
    grown = AutoModelForCausalLM.from_pretrained(tiny_model)
    grown.resize_token_embeddings(grown.config.vocab_size + 8)
    grown.save_pretrained(own)
    assert said(tiny_model, own) == []


def test_an_adapter_resumes_on_its_base_alone(tiny_model: Path, lora: Path, tmp_path: Path) -> None:
    same_shapes = tmp_path / "other"
    other = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        other.get_input_embeddings().weight.add_(1)
    other.save_pretrained(same_shapes)
    (problem,) = said(same_shapes, lora, *LORA)
    assert "trained on other weights than those" in problem


def test_a_checkpoint_of_another_tool_is_asked_by_its_weights(
    tiny_model: Path, own: Path, lora: Path, tmp_path: Path
) -> None:
    adapter = Path(shutil.copytree(lora, tmp_path / "adapter"))
    for folder in (own, adapter):
        (folder / "hftune.json").unlink()
    assert said(tiny_model, own) == said(tiny_model, adapter, *LORA) == said(tiny_model, own, "--optim", "sgd") == []
    assert "trains an adapter, and this one trains all weights" in said(tiny_model, adapter)[0]


def test_what_is_not_whole_has_a_rule_of_its_own(tiny_model: Path, own: Path, tmp_path: Path) -> None:
    (own / "trainer_state.json").unlink()
    assert said(tiny_model, own, stage="dpo") == said(tiny_model, tmp_path / "nowhere") == []


def test_an_old_manifest_says_less(tiny_model: Path, own: Path) -> None:
    write_manifest(own, {"status": "checkpoint"})
    assert said(tiny_model, own, "--optim", "sgd", stage="sft") == []
    write_manifest(own, {"stage": "sft", "arguments": {"training": None, "adapter": {}}})
    assert said(tiny_model, own, "--optim", "sgd") == []


@pytest.mark.parametrize(
    ("flags", "trains"),
    [([], True), (["--do_eval"], False), (["--do_train", "False"], False), (["--do_eval", "--do_train"], True)],
)
def test_training_that_is_refused_by_name_is_not_done(flags: list[str], trains: bool) -> None:
    assert parse_arguments("sft", ["--output_dir", "out", *flags]).training.do_train is trains


def engine(folder: Path, **record: Any) -> Path:
    engine = folder / "checkpoint-5" / "global_step5"
    engine.mkdir(parents=True)
    (engine / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    (folder / "checkpoint-5" / "latest").write_text("global_step5")
    (folder / "checkpoint-5" / RECORD_NAME).write_text(json.dumps({"files": {}, **record}))
    return folder / "checkpoint-5"


def of_groups(folder: Path | None, tensor: int = 1, expert: int = 1, stage: int = 2) -> list[str]:
    args: Any = SimpleNamespace(tensor_parallel_size=tensor, expert_parallel_size=expert, zero_stage=stage)
    with pytest.MonkeyPatch.context() as two_processes:
        two_processes.setattr(resume.ranks, "world_size", lambda: 2)
        return [str(problem) for problem in check_groups(folder, args)]


def test_without_groups_any_world_resumes(tmp_path: Path) -> None:
    folder = engine(tmp_path, zero_stage=3, world_size=16)
    assert of_groups(folder) == of_groups(None) == of_groups(tmp_path / "nowhere") == of_groups(tmp_path) == []


def test_groups_stay_what_they_were(tmp_path: Path) -> None:
    same = {"zero_stage": 2, "world_size": 2}
    folder = engine(tmp_path, tensor_parallel_size=2, expert_parallel_size=1, **same)
    assert of_groups(folder, tensor=2) == []
    (problem,) = of_groups(folder, tensor=1)
    assert "written with --tensor_parallel_size 2, and this run has 1" in problem and "--warm_start" in problem
    (problem,) = of_groups(folder, tensor=2, expert=2)
    assert "--expert_parallel_size 1, and this run has 2" in problem
    (problem,) = of_groups(folder, tensor=2, stage=1)
    assert "ZeRO stage 2, and this run has 1" in problem


def test_a_group_of_experts_wants_its_world(tmp_path: Path) -> None:
    folder = engine(tmp_path, expert_parallel_size=2, zero_stage=2, world_size=4)
    (problem,) = of_groups(folder, expert=2)
    assert "processes 4, and this run has 2" in problem
