"""The micro step that arguments ask for."""

from __future__ import annotations

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.preflight.estimating.work import ANSWERS, WEIGHTED, Work, work_of


def work(stage: str, *flags: str) -> Work:
    asked = ["--model_name_or_path", "m", "--output_dir", "o", "--per_device_train_batch_size", "4", *flags]
    return work_of(parse_arguments(stage, asked)[3], "sdpa", adapted=True)


LENGTHS = ("--num_generations", "4", "--max_prompt_length", "256", "--max_completion_length", "128")


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_rl_scores_drawn_answers_alone(algorithm: str) -> None:
    found = work("rl", "--rl_algorithm", algorithm, *LENGTHS)
    assert found.head == ANSWERS and found.tokens_per_micro_step == 4 * 384 and found.scored_tokens == 4 * 128
    assert found.with_examples(2).scored_tokens == 2 * 128


def test_other_stages_score_whole_rows() -> None:
    assert work("sft", "--max_length", "64").scored_tokens == 4 * 64 and work("sft").head == WEIGHTED
    pairs = work("dpo", "--max_length", "64")
    assert pairs.head == ANSWERS and pairs.scored_tokens == 2 * 4 * 64
