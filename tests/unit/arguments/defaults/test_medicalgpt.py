"""MedicalGPT's commands with `--defaults medicalgpt` mean what they mean there, and are told apart from hftune's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hftune import logging
from hftune.arguments.defaults import medicalgpt
from hftune.arguments.defaults.choosing import MEDICALGPTS
from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError

LISTS = Path(__file__).parents[1] / "lists"
LAUNCHED = yaml.safe_load((LISTS / "medicalgpt.yaml").read_text(encoding="utf-8"))
SCRIPTS = {name: name for name in ("pt", "sft", "rm", "dpo", "orpo", "grpo")} | {"rloo": "ppo", "distill": "opd"}
COMMANDS = {kind: LAUNCHED[f"scripts/run_{script}.sh"]["flags"] for kind, script in SCRIPTS.items()}
STAGE = {"orpo": "dpo", "rloo": "rl", "grpo": "rl"}
ASKED = ["--output_dir", "o", "--defaults", "medicalgpt", "--do_train"]


def parsed(script: str, *more: str) -> dict[str, Any]:
    """All arguments of a list of its by name; what was said is in `logging.notices()`."""
    groups = parse_arguments(STAGE.get(script, script), [*COMMANDS[script], *more])
    return {name: value for group in groups for name, value in vars(group).items()}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    monkeypatch.setattr(medicalgpt, "is_installed", lambda package: True)


TRAINER = {"learning_rate": 5e-5, "lr_scheduler_type": "linear", "warmup_steps": 0, "weight_decay": 0.0}
TRAINER |= {"num_train_epochs": 3.0, "max_steps": -1, "gradient_accumulation_steps": 1, "logging_steps": 500}
"""transformers' own, which the first three of its scripts extend."""
PAIRS = {"max_prompt_length": 2048, "max_completion_length": 512, "too_long": "drop"}
DPO = {"learning_rate": 5e-4, "lr_scheduler_type": "cosine", "warmup_steps": 100, "weight_decay": 0.05}
DPO |= {"max_steps": 200, "lora_alpha": 16, "length_budget": "sum_of_characters", **PAIRS}
LORA = {"use_peft": True, "lora_r": 8, "lora_alpha": 32, "lora_dropout": 0.05, "lora_target_modules": ["all"]}
EXPECTED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "pt": ([], TRAINER | LORA | {"block_size": 1024, "count_rows": True, "validation_split_percentage": 1.0}),
    "sft": ([], TRAINER | LORA | {"max_length": 512, "shuffle_seed": 42, "train_in_float32": True}),
    "rm": ([], TRAINER | LORA | PAIRS | {"length_budget": "sum", "max_length": 2560}),
    "dpo": ([], DPO | {"lora_target_modules": ["default"]}),
    "orpo": (["--loss_type", "orpo"], DPO | {"lora_target_modules": ["all"]}),
    "distill": ([], {"learning_rate": 2e-5, "max_length": 1152, "distill_mode": "mixed", "beta": 0.5}),
    "grpo": ([], {"use_peft": False, "lora_r": 16, "shuffle_seed": 42, "dataset_name": "openai/gsm8k:main@train"}),
    "rloo": (["--rl_algorithm", "rloo"], {"use_peft": False, "max_eval_samples": 100, "max_prompt_length": 1024}),
}
"""Of each of its scripts what decides a run where the command is silent, as its code has it."""


@pytest.mark.parametrize("script", EXPECTED)
def test_what_its_scripts_do_unasked(script: str) -> None:
    flags, expected = EXPECTED[script]
    groups = parse_arguments(STAGE.get(script, script), [*ASKED, *flags])
    found = {name: getattr(value, "value", value) for group in groups for name, value in vars(group).items()}
    assert {name: found[name] for name in expected} == expected
    said = "\n".join(logging.notices())
    assert all(f"{name} {value} (" in said for name, value, _ in medicalgpt.UNEQUAL)
    if script == "grpo":
        assert found["reward_funcs"] == ["accuracy", "format"]
        assert "<answer> answer here </answer>" in found["system_prompt"]


@pytest.mark.parametrize("script", ["pt", "orpo", "rloo"])
def test_what_is_given_stays(script: str) -> None:
    """Also where MedicalGPT's default is another, and where it is hftune's default."""
    more = ["--learning_rate", "1e-6", "--lora_alpha", "16", "--validation_split_percentage", "0", "--seed", "3"]
    found = parsed(script, "--defaults", "medicalgpt", *more)
    assert (found["learning_rate"], found["lora_alpha"], found["seed"]) == (1e-6, 16, 3)
    assert found["validation_split_percentage"] == 0.0


@pytest.mark.parametrize("script", ["pt", "orpo", "rloo", "grpo"])
def test_without_the_flag_one_notice_says_that_defaults_are_others(script: str) -> None:
    parsed(script, "--defaults", "hftune")
    assert MEDICALGPTS not in logging.notices(), "who has said it knows"
    parsed(script)
    assert logging.notices().count(MEDICALGPTS) == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--train_file_dir", "d", "--use_peft", "True", "--lora_r", "8", "--max_train_samples", "5"],
        ["--train_file_dir", "d", "--lora_rank", "8", "--target_modules", "all"],
        ["--lora_rank", "8", "--target_modules", "all", "--torch_dtype", "bfloat16"],
        ["--micro_batch_size", "2", "--lr", "1e-4", "--tuner_type", "lora"],
    ],
)
def test_commands_of_others_are_left_alone(flags: list[str]) -> None:
    parse_arguments("sft", [*flags, "--output_dir", "o"])
    assert MEDICALGPTS not in logging.notices()


def test_its_scripts_do_nothing_unasked() -> None:
    with pytest.raises(ArgumentError, match="does nothing without --do_train"):
        parse_arguments("dpo", ASKED[:-1])
    *_, training = parse_arguments("dpo", [*ASKED[:-1], "--do_eval"])
    assert (training.do_train, training.do_eval) == (False, True)
    assert parse_arguments("rl", ASKED[:-1]).training.do_train is True


def test_it_works_from_a_file(tmp_path: Any) -> None:
    (tmp_path / "dpo.yaml").write_text("output_dir: o\ndefaults: medicalgpt\ndo_train: true\nwarmup_steps: 7\n")
    *_, training = parse_arguments("dpo", ["--config", str(tmp_path / "dpo.yaml")])
    assert (training.learning_rate, training.warmup_steps, training.max_steps) == (5e-4, 7, 200)


@pytest.mark.parametrize(
    "stage, flags, name, value",
    [
        ("dpo", ["--max_length", "300"], "max_length", 300),
        ("dpo", ["--num_train_epochs", "2"], "max_steps", -1),
        ("dpo", ["--activation_checkpointing", "none", "--gradient_checkpointing", "False"], "recomputation", None),
        ("rl", ["--reward_model_path", "r"], "reward_funcs", None),
        ("distill", ["--max_completion_length", "28"], "max_length", 1052),
    ],
)
def test_it_leaves_alone_what_another_flag_has_settled(stage: str, flags: list[str], name: str, value: Any) -> None:
    assert getattr(parse_arguments(stage, [*ASKED, *flags]).training, name) == value


def test_new_rows_alone_need_no_adapter() -> None:
    assert parse_arguments("sft", [*ASKED, "--train_new_tokens_only", "True"]).adapter.train_new_tokens_only


def test_a_tracker_that_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tensorboard" in parse_arguments("dpo", ASKED)[-1].report_to
    monkeypatch.setattr(medicalgpt, "is_installed", lambda package: False)
    assert not parse_arguments("dpo", ASKED)[-1].report_to
    assert any("report_to tensorboard (it is not installed)" in said for said in logging.notices())


def test_half_precision_is_for_adapters_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values alone: what a machine with a GPU resolves them to."""
    monkeypatch.setattr(medicalgpt.launch, "has_accelerator", lambda: True)
    given = {"do_train": "true"}
    for stage, name, value in (("sft", "dtype", "float16"), ("dpo", "fp16", True)):
        values, said = medicalgpt.medicalgpt_defaults(stage, given)
        assert values[name] == value
        assert not [why for why in said if name in why.split()]
        values, said = medicalgpt.medicalgpt_defaults(stage, given | {"use_cpu": ""})
        assert name not in values and any(why.startswith(f"{name} {value} (a CPU") for why in said)
    values, said = medicalgpt.medicalgpt_defaults("sft", given | {"use_peft": "False"})
    assert "dtype" not in values and "dtype float16 (what is trained is kept in float32)" in said
    values, said = medicalgpt.medicalgpt_defaults("dpo", given | {"bf16": "True"})
    assert "fp16" not in values and "fp16 True (--bf16 was given, and there is one of the two)" in said
