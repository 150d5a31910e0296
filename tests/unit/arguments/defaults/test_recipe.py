"""The resolved recipe: a few lines, with a mark at what was not given."""

from __future__ import annotations

import pytest

from hftune.arguments.defaults.recipe import recipe
from hftune.arguments.entry import parse_arguments

OUT = ["--output_dir", "o"]


def lines(stage: str, *flags: str) -> list[str]:
    return recipe(*parse_arguments(stage, [*flags, *OUT]))


def test_the_recipe_marks_what_was_not_given() -> None:
    assert lines(
        "dpo", "--use_peft", "--learning_rate", "5e-5", "--gradient_accumulation_steps", "4", "--max_steps", "60",
        "--validation_file_dir", "d", "--lora_r", "16",
    ) == [
        "recipe (* not given: default; `hftune explain NAME` says why)",
        "  learning_rate 5e-05, lr_scheduler_type cosine*, warmup_steps 0.1*, optim adamw_torch_fused*, "
        "weight_decay 0*",
        "  loss_type sigmoid*, beta 0.1*",
        "  batch 32 = per_device_train_batch_size 8* x gradient_accumulation_steps 4 x 1 process(es); max_steps 60, "
        "logging_steps 10*, save_strategy steps*, save_steps 500*",
        "  max_length 1024*, length_budget each*, too_long cut*, validation_file_dir d, "
        "validation_split_percentage 0*, eval_strategy steps*, eval_steps 0.25*",
        "  use_peft True, lora_r 16, lora_alpha 16*, lora_dropout 0*, lora_target_modules all*, dtype auto*, "
        "bf16 False*",
    ]  # fmt: skip


def test_the_recipe_of_all_weights_and_of_evaluation_alone() -> None:
    assert "use_peft False*, dtype" in lines("sft")[-1]
    assert "num_train_epochs 3*" in lines("sft")[3] and "max_steps" not in lines("sft")[3]
    assert "use_peft True, load_in_4bit" in lines("sft", "--qlora")[-1]
    alone = lines("sft", "--do_eval", "--validation_file_dir", "d")
    assert len(alone) == 3
    assert not any("learning_rate" in line for line in alone)


def test_the_recipe_of_a_distillation_names_who_teaches_what() -> None:
    found = lines("distill", "--teacher_model_name_or_path", "models/a", "--beta", "0")[2]
    assert "distill_mode on_policy*" in found and "beta 0, temperature 1*" in found
    assert "teacher_model_name_or_path models/a" in found


@pytest.mark.parametrize("stage", ["pt", "rm"])
def test_a_recipe_is_a_few_lines(stage: str) -> None:
    assert len(lines(stage)) <= 7
    whose = lines(stage, "--defaults", "medicalgpt", "--do_train")[0]
    assert "MedicalGPT's default" in whose


def test_the_recipe_of_rl_names_its_algorithm() -> None:
    found = lines("rl", "--rl_algorithm", "ppo", "--reward_funcs", "length")[2]
    assert "rl_algorithm ppo, beta 0.05*" in found and "reward_funcs length" in found
