"""The resolved recipe: a few lines, with a mark at what was not given."""

from __future__ import annotations

import pytest

from hftune.arguments.defaults.recipe import recipe
from hftune.arguments.entry import parse_arguments
from hftune.arguments.stage_table import STAGES

OUT = ["--output_dir", "o"]


def lines(stage: str, *flags: str) -> list[str]:
    return recipe(*parse_arguments(stage, [*flags, *OUT]))


def test_the_recipe_marks_what_was_not_given() -> None:
    first, rate, batch, rows, trained = lines(
        "dpo", "--use_peft", "--learning_rate", "5e-5", "--gradient_accumulation_steps", "4", "--max_steps", "60",
        "--validation_file_dir", "d", "--lora_r", "16",
    )  # fmt: skip
    assert "default" in first
    assert "learning rate 5e-05, cosine*, warm-up 10 % of steps*" in rate
    assert "loss sigmoid* with beta 0.1*" in rate
    assert "batch 32 = 8* per device x 4 accumulated x 1 process(es); 60 steps, a log every 10 steps*" in batch
    assert "max_length 1024*" in rows
    assert "evaluation every 25 % of steps* of the held-out records" in rows
    assert "LoRA r 16, alpha 16*, dropout 0* on all*; weights auto*, computed in float32*" in trained


def test_the_recipe_of_all_weights_and_of_evaluation_alone() -> None:
    assert "all weights*" in lines("sft")[-1]
    assert "3* epoch(s)" in lines("sft")[2]
    alone = lines("sft", "--do_eval", "--validation_file_dir", "d")
    assert len(alone) == 3
    assert not any("learning rate" in line for line in alone)


def test_the_recipe_of_a_distillation_names_who_teaches_what() -> None:
    found = lines("distill", "--teacher_model_name_or_path", "models/a", "owner/b", "--beta", "0")[1]
    assert "on_policy* with beta 0 (forward KL), temperature 1*, taught by a+b" in found
    mixed = lines("distill", "--teacher_model", "m", "--opd_lambda", "0.3")[1]
    assert "mixed (0.3 of the steps) with beta 1* (reverse KL), temperature 1*, taught by m" in mixed


@pytest.mark.parametrize("stage", STAGES)
def test_a_recipe_is_a_few_lines(stage: str) -> None:
    assert len(lines(stage)) <= 6
    whose = lines(stage, "--defaults", "medicalgpt", "--do_train")[0]
    assert "MedicalGPT's default" in whose
    if stage == "rl":
        found = lines(stage, "--rl_algorithm", "ppo", "--reward_funcs", "length")[1]
        assert "ppo with beta 0.05*, rewards length" in found
