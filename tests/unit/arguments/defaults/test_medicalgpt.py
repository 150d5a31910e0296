"""MedicalGPT's commands with `--defaults medicalgpt` mean what they mean there, and are told apart from hftune's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import TrainingArguments

from hftune import logging
from hftune.arguments.defaults import medicalgpt
from hftune.arguments.entry import parse_arguments
from hftune.arguments.names import table as names
from hftune.errors import ArgumentError

LISTS = Path(__file__).parents[1] / "lists"
DEFAULTS = yaml.safe_load((LISTS / "medicalgpt_defaults.yaml").read_text(encoding="utf-8"))
LAUNCHED = yaml.safe_load((LISTS / "medicalgpt.yaml").read_text(encoding="utf-8"))
SCRIPTS = {name: name for name in ("pt", "sft", "rm", "dpo", "orpo", "grpo")} | {"rloo": "ppo", "distill": "opd"}
COMMANDS = {kind: " ".join(LAUNCHED[f"scripts/run_{script}.sh"]["flags"]) for kind, script in SCRIPTS.items()}
STAGE = {"orpo": "dpo", "rloo": "rl", "grpo": "rl"}

# What its classes have and hftune has no value for, or another one; `said`: the run says so.
NOT_HERE = {
    "trust_remote_code": "said",
    "use_fast_tokenizer": "said",
    "device_map": "said",
    "min_target_length": "answers of any length are trained here and there: its scripts do not read it",
    "keep_linebreaks": "lines are documents",
    "ignore_pad_token_for_loss": "padding is never trained",
    "shift_attn": "refused where it is asked for",
    "template_name": "the tokenizer's template, here as there",
    "tool_format": "the tokenizer's template, here as there",
    "padding": "batches are padded",
    "pad_to_multiple_of": "of a collator",
    "return_tensors": "of a collator",
    "max_length": "of a collator",
    "teacher_device_map": "a teacher is on the device of its process",
    "max_prompt_length": "with the answer's room it is max_length",
    "hf_hub_token": "a secret: the environment's or the saved one",
    "dataset_config_name": "part of --dataset_name here",
    "dataset_config": "part of --dataset_name here",
    "subset_name": "part of --dataset_name here",
    "dataset_splits": "part of --dataset_name here",
    "dataset_train_split": "part of --dataset_name here",
    "dataset_test_split": "part of --dataset_name here",
    "sft_model_path": "an alias of model_name_or_path",
    "train_samples": "an alias of max_train_samples, whose -1 is all as well",
}
NONE_IS = {"max_train_samples": -1, "max_eval_samples": -1, "preprocessing_num_workers": 1, "torch_dtype": "auto"}
NONE_IS |= {"target_modules": ["default"]}
OF_TRAINER = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "num_train_epochs", "max_steps", "optim"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "logging_steps"),
    *("save_steps", "eval_strategy", "eval_steps", "max_grad_norm", "seed", "lr_scheduler_type", "logging_first_step"),
)


def parsed(script: str, *more: str) -> dict[str, Any]:
    """All arguments of a list of its by name; what was said is in `logging.notices()`."""
    argv = [*COMMANDS[script].split(), *more]
    groups = parse_arguments(STAGE.get(script, script), argv)
    return {name: value for group in groups for name, value in vars(group).items()}


def given(script: str) -> set[str]:
    return set(re.findall(r"--(\w+)", COMMANDS[script]))


def table(script: str) -> dict[str, str]:
    """Its classes' defaults as they are written down."""
    entries = (entry.strip().split(" ", 1) for entry in DEFAULTS[script].split(", "))
    return {name: value.strip("'") for name, value in entries}


def here(script: str, name: str) -> str:
    """hftune's name for an argument of theirs."""
    row = names.table().get(name)
    special = {"target_modules": "lora_target_modules", "neft_alpha": "neftune_noise_alpha", "orpo_beta": "beta"}
    if name in special:
        return special[name]
    return (row.target(STAGE.get(script, script)) if row is not None and row.to else None) or name


def same(name: str, found: Any, written: str) -> bool:
    """Whether a value of hftune's is what the table says."""
    if written == "-":
        return bool(found == NONE_IS.get(name, None)) or found in (None, False)
    if isinstance(found, list):
        return found == written.split()
    if isinstance(found, bool):
        return str(found) == written
    if name == "neft_alpha":
        return found is None and written == "0"
    if isinstance(found, int | float):
        return float(found) == float(written)
    return str(getattr(found, "value", found)) == written


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    monkeypatch.setattr(medicalgpt, "is_installed", lambda package: True)


@pytest.mark.parametrize("script", COMMANDS)
def test_every_value_of_its_classes(script: str) -> None:
    found = parsed(script, "--defaults", "medicalgpt")
    said = " ".join(logging.notices())
    compared = 0
    for name, written in table(script).items():
        if name in given(script) or (NOT_HERE.get(name, "said") != "said"):
            continue
        if f"{here(script, name)} {written}" in said:
            continue  # one line says why not
        assert name not in NOT_HERE, f"nothing is said of {name}"
        if name == "dataset_name" and "train_file_dir" in given(script):
            continue  # a folder counts for more, here as there
        value = found[here(script, name)]
        assert same(name, value, written), f"{name}: {value!r} here, {written} there"
        compared += 1
    assert compared >= {"grpo": 2, "rloo": 0}.get(script, 8)


@pytest.mark.parametrize("script", ["pt", "sft", "rm"])
def test_where_its_classes_extend_the_trainers(script: str) -> None:
    found = parsed(script, "--defaults", "medicalgpt")
    plain = {name: getattr(TrainingArguments, name) for name in OF_TRAINER}
    for name in set(OF_TRAINER) - given(script):
        assert found[name] == plain[name], name
    assert found["gradient_checkpointing"] is True  # given
    assert parsed(script, "--defaults", "medicalgpt", "--gradient_checkpointing", "False")["recomputation"] is None


BESIDES = {
    "pt": {"count_rows": True, "validation_split_percentage": 1.0},
    "sft": {"shuffle_seed": 42, "train_in_float32": True},
    "rm": {"max_length": 1280, "too_long": "drop", "most_characters": None, "separate_limits": (None, None)},
    "dpo": {"max_length": 1536, "too_long": "drop", "length_budget": "sum_of_characters", "shuffle_seed": None},
    "orpo": {"max_length": 1536, "length_budget": "sum_of_characters", "validation_split_percentage": 1.0},
    "distill": {"shuffle_seed": 42, "max_length": 1536, "distill_mode": "mixed", "validation_split_percentage": 1.0},
    "rloo": {"max_eval_samples": 100, "use_peft": False},
    "grpo": {"reward_funcs": ["accuracy", "format"], "shuffle_seed": 42},
}


@pytest.mark.parametrize("script", BESIDES)
def test_what_its_code_does_besides(script: str) -> None:
    argv = [*COMMANDS[script].split(), "--defaults", "medicalgpt"]
    groups = parse_arguments(STAGE.get(script, script), argv)
    for name, value in BESIDES[script].items():
        (owner,) = [group for group in groups if hasattr(group, name)]
        assert getattr(owner, name) == value, name
    if script == "grpo":
        assert "<answer> answer here </answer>" in groups[-1].system_prompt


@pytest.mark.parametrize("script", COMMANDS)
def test_what_is_given_stays(script: str) -> None:
    """Also where MedicalGPT's default is another, and where it is hftune's default."""
    more = ["--learning_rate", "1e-6", "--lora_alpha", "16", "--validation_split_percentage", "0", "--seed", "3"]
    found = parsed(script, "--defaults", "medicalgpt", *more)
    assert (found["learning_rate"], found["lora_alpha"], found["seed"]) == (1e-6, 16, 3)
    assert found["validation_split_percentage"] == 0.0


NOTICE = {
    "pt": ["lr_scheduler_type cosine (there linear)", "count_rows False (there True)"],
    "sft": ["shuffle_seed None (there 42)", "train_in_float32 False (there True)"],
    "rm": ["too_long cut (there drop)", "length_budget each (there sum)"],
    "dpo": ["learning_rate 5e-05 (there 0.0005)", "length_budget each (there sum_of_characters)"],
    "orpo": ["learning_rate 0.0002 (there 0.0005)", "validation_split_percentage 0 (there 1)"],
    "distill": ["lr_scheduler_type cosine (there linear)", "shuffle_seed None (there 42)"],
    "rloo": ["lr_scheduler_type constant_with_warmup (there"],
    "grpo": ["reward_funcs None (there accuracy format)", "system_prompt None"],
}


@pytest.mark.parametrize("script", COMMANDS)
def test_without_the_flag_one_notice_names_what_differs(script: str) -> None:
    parsed(script)
    found = [said for said in logging.notices() if "command of MedicalGPT's" in said]
    assert len(found) == 1
    assert "--defaults medicalgpt" in found[0]
    for part in NOTICE[script]:
        assert part in found[0]


@pytest.mark.parametrize("script", COMMANDS)
def test_whoever_has_said_whose_defaults_is_not_told_again(script: str) -> None:
    for whose in ("hftune", "medicalgpt"):
        parsed(script, "--defaults", whose)
    assert not [said for said in logging.notices() if "command of MedicalGPT's" in said]


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
    assert not [said for said in logging.notices() if "MedicalGPT's" in said]


@pytest.mark.parametrize("stage", ["pt", "sft", "rm", "dpo"])
def test_its_scripts_do_nothing_unasked(stage: str) -> None:
    with pytest.raises(ArgumentError, match="does nothing without --do_train"):
        parse_arguments(stage, ["--output_dir", "o", "--defaults", "medicalgpt"])
    *_, training = parse_arguments(stage, ["--output_dir", "o", "--defaults", "medicalgpt", "--do_eval"])
    assert (training.do_train, training.do_eval) == (False, True)
    *_, training = parse_arguments("rl", ["--output_dir", "o", "--defaults", "medicalgpt"])
    assert training.do_train is True


def test_its_grpo_trains_on_gsm8k_where_nothing_else_is_named() -> None:
    _, data, *_ = parse_arguments("rl", ["--output_dir", "o", "--defaults", "medicalgpt"])
    assert data.dataset_name == "openai/gsm8k:main@train"
    *_, training = parse_arguments("rl", ["--output_dir", "o", "--defaults", "medicalgpt", "--reward_model_path", "r"])
    assert (training.reward_funcs, training.system_prompt) == (None, None)


def test_it_works_from_a_file(tmp_path: Any) -> None:
    (tmp_path / "dpo.yaml").write_text("output_dir: o\ndefaults: medicalgpt\ndo_train: true\nwarmup_steps: 7\n")
    *_, training = parse_arguments("dpo", ["--config", str(tmp_path / "dpo.yaml")])
    assert (training.learning_rate, training.warmup_steps, training.max_steps) == (5e-4, 7, 200)


@pytest.mark.parametrize(
    "flags, name, value",
    [
        (["--max_length", "300"], "max_length", 300),
        (["--num_train_epochs", "2"], "max_steps", -1),
        (["--activation_checkpointing", "none", "--gradient_checkpointing", "False"], "gradient_checkpointing", False),
    ],
)
def test_it_leaves_alone_what_another_flag_has_settled(flags: list[str], name: str, value: Any) -> None:
    *_, training = parse_arguments("dpo", ["--output_dir", "o", "--defaults", "medicalgpt", "--do_train", *flags])
    assert getattr(training, name) == value


def test_a_tracker_that_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["--output_dir", "o", "--defaults", "medicalgpt", "--do_train"]
    assert "tensorboard" in parse_arguments("dpo", asked)[-1].report_to
    monkeypatch.setattr(medicalgpt, "is_installed", lambda package: False)
    assert not parse_arguments("dpo", asked)[-1].report_to
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


def test_new_rows_alone_need_no_adapter() -> None:
    asked = ["--output_dir", "o", "--defaults", "medicalgpt", "--do_train", "--train_new_tokens_only", "True"]
    assert parse_arguments("sft", asked)[2].train_new_tokens_only
