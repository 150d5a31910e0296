"""Arguments that have no effect without another are refused, in a run and in a plan, from one table."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import algorithms, stage_parser
from hftune.errors import UserError
from hftune.logging import notices
from hftune.preflight.facts import resolve
from hftune.preflight.rules.without_effect import Need, check_without_effect, needs
from hftune.tools.planning.command import plan

HELD = ("--validation_file_dir", "held-out")


def said(stage: str, *flags: str) -> list[str]:
    """The places of what is refused."""
    given = parse_arguments(stage, ["--output_dir", "o", "--train_file_dir", "records", *flags])
    return [f"{problem.place}: {problem.cause}" for problem in check_without_effect(resolve(stage, given))]


@pytest.mark.parametrize("need", [need for need in needs() if need.example], ids=lambda need: need.names[0])
def test_an_example_of_each_row_is_refused(need: Need) -> None:
    words = need.example.split()
    stage = words.pop(0) if words[0] in STAGES else "sft"
    arguments = parse_arguments(stage, ["--output_dir", "o", *words])
    facts: Any = SimpleNamespace(arguments=arguments, training_args=arguments.training)
    (problem,) = check_without_effect(facts)
    needed = f"--{need.other}" + (f" {' or '.join(need.values)}" if need.values else "")
    assert {*str(problem.place).replace("--", "").split(", ")} <= {*need.names}
    assert problem.cause.startswith(f"{problem.place} ha") and problem.cause.endswith(f" without {needed}")


def test_new_rows_alone_have_no_rank() -> None:
    (problem,) = said("sft", "--train_new_tokens_only", "--lora_r", "16")
    assert problem.startswith("--lora_r: ") and problem.endswith("--use_peft")


@pytest.mark.parametrize(
    "stage, flags",
    [
        ("sft", ("--lora_r", "16", "--qlora")),
        ("sft", ("--lora_r", "16", "--peft_path", "adapter")),
        ("sft", ("--use_dora", "False", "--lora_dropout", "0", "--lora_bias", "none", "--max_eval_samples", "-1")),
        ("sft", ("--eval_steps", "5", *HELD)),
        ("sft", ("--eval_steps", "5", "--validation_split_percentage", "5")),
        ("sft", ("--max_train_samples", "9", "--shuffle_seed", "3")),
        ("sft", ("--num_cycles", "0.5", "--lr_end", "1e-7", "--power", "1.0")),
        ("sft", ("--attention_probs_dropout_prob", "0.1", "--dropout_warmup_steps", "9")),
        ("sft", ("--eval_packing", "True", *HELD, "--packing_strategy", "wrapped")),
        ("dpo", ("--loss_type", "sigmoid", "simpo", "--simpo_gamma", "1", "--label_smoothing", "0.1")),
        ("rl", ("--loss_type", "sapo", "--sapo_temperature_pos", "2")),
        ("rl", ("--use_vllm", "--vllm_mode", "server")),
        ("distill", ("--distill_mode", "mixed", "--on_policy_share", "0.3", "--top_p", "0.9")),
    ],
)
def test_fine(stage: str, flags: tuple[str, ...]) -> None:
    assert not said(stage, *flags)


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--use_peft False --lora_rank 8", "--lora_r has no effect with --use_peft False"),
        ("--packing False --packing_strategy wrapped", "--packing_strategy has no effect with --packing False"),
        ("--save_strategy no --save_steps 5", "--save_steps has no effect with --save_strategy no"),
        ("--eval_strategy no --eval_steps 5", "--eval_steps has no effect with --eval_strategy no"),
        (
            "--validation_file_dir held-out --validation_split_percentage 5",
            "--validation_split_percentage has no effect with --validation_file_dir: its records are held out",
        ),
    ],
)
def test_next_to_a_switch_turned_off_by_name_it_is_said(
    flags: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    assert not said("sft", *flags.split())
    assert expected in notices()


def test_each_name_of_the_table_is_an_argument() -> None:
    parsers = [stage_parser(stage) for stage in STAGES] + [stage_parser("rl", one) for one in algorithms()]
    known = [parser.known for parser in parsers]
    for need in needs():
        for name in need.names:
            assert any(name in arguments and need.other in arguments for arguments in known), (name, need.other)


def test_values_of_the_table_are_choices() -> None:
    known = [stage_parser(stage).known for stage in STAGES] + [stage_parser("rl", "online_dpo").known]
    for need in needs():
        taken = [arguments[need.other].choices for arguments in known if need.other in arguments]
        for value in need.values:
            assert any(choices is None or value in choices for choices in taken), (need.other, value)


def test_a_plan_refuses_them_as_a_run_does(tiny_model: Path) -> None:
    argv = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--train_file_dir", ".", "--lora_rank", "8"]
    with pytest.raises(UserError, match="--lora_r has no effect without --use_peft"):
        plan("sft", argv)
