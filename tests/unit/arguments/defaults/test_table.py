"""hftune's own defaults: chosen for what is trained, never over what was given, and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.defaults.choosing import hftune_defaults
from hftune.arguments.defaults.table import KINDS, OWN, SAME, run_kind_of
from hftune.arguments.entry import help_page, parse_arguments
from hftune.arguments.stages import algorithms, stage_parser

OUT = ["--output_dir", "o"]
ROOT = Path(__file__).parents[4]


def rate(stage: str, *flags: str) -> float:
    return float(parse_arguments(stage, [*flags, *OUT])[-1].learning_rate)


@pytest.mark.parametrize(
    "stage, flags, lora, full",
    [
        ("pt", [], 2e-4, 2e-5),
        ("sft", [], 2e-4, 2e-5),
        ("rm", [], 1e-4, 1e-5),
        ("dpo", [], 5e-5, 1e-6),
        ("dpo", ["--loss_type", "ipo"], 5e-5, 1e-6),
        ("dpo", ["--loss_type", "orpo"], 2e-4, 8e-6),
        ("dpo", ["--loss_type", "simpo"], 1e-4, 1e-6),
        ("dpo", ["--loss_type", "sigmoid", "simpo", "--loss_weights", "1", "1"], 5e-5, 1e-6),
        ("rl", [], 5e-5, 1e-6),
        ("rl", ["--rl_algorithm", "ppo"], 5e-5, 1e-6),
    ],
)
def test_an_adapter_learns_faster_than_all_weights(stage: str, flags: list[str], lora: float, full: float) -> None:
    assert (rate(stage, *flags, "--use_peft"), rate(stage, *flags)) == (lora, full)


def test_weights_drawn_at_random_want_large_steps() -> None:
    *_, training = parse_arguments("pt", ["--from_config", *OUT])
    assert (training.learning_rate, training.weight_decay) == (5e-4, 0.1)


@pytest.mark.parametrize(
    "stage, name, default, value",
    [
        ("dpo", "learning_rate", 5e-5, "1e-06"),  # the default of its field
        ("dpo", "lr_scheduler_type", "cosine", "linear"),
        ("dpo", "warmup_steps", 0.1, "0"),
        ("pt", "num_train_epochs", 1.0, "3"),
        ("rm", "train_in_float32", True, "False"),
        ("rl", "logging_steps", 1, "10"),
    ],
)
def test_what_is_given_stays_also_at_the_fields_default(
    stage: str, name: str, default: Any, value: str, tmp_path: Path
) -> None:
    def of(*argv: str) -> Any:
        return getattr(parse_arguments(stage, [*argv, "--use_peft", *OUT])[-1], name)

    (tmp_path / "run.yaml").write_text(f"{name}: {value}\n")
    plain = stage_parser(stage).known[name].default
    assert of() == default
    assert of(f"--{name}", value) == of("--config", str(tmp_path / "run.yaml")) == plain


def test_evaluation_where_records_are_held_out() -> None:
    for flags in (["--validation_file_dir", "d"], ["--validation_split_percentage", "5"]):
        *_, training = parse_arguments("sft", [*flags, *OUT])
        assert (training.eval_strategy, training.eval_steps, training.do_train) == ("steps", 0.25, True)
    for stage, flags in (
        ("sft", []),
        ("sft", ["--validation_split_percentage", "0.0"]),
        ("rl", ["--validation_file_dir", "d"]),
    ):
        assert parse_arguments(stage, [*flags, *OUT])[-1].eval_strategy == "no"
    *_, training = parse_arguments("sft", ["--validation_file_dir", "d", "--eval_strategy", "epoch", *OUT])
    assert training.eval_strategy == "epoch"
    given = ["--validation_file_dir", "d", "--eval_strategy", "steps", "--save_steps", "10"]
    *_, training = parse_arguments("sft", [*given, "--load_best_model_at_end", "True", *OUT])
    assert training.eval_steps == 10  # as often as it logs: a share would not fit --save_steps
    *_, training = parse_arguments("sft", ["--validation_file_dir", "d", "--do_eval", *OUT])
    assert (training.do_train, training.do_eval) == (False, True)


@pytest.mark.parametrize("schedule", ["constant", "reduce_lr_on_plateau"])
def test_a_schedule_that_was_named_is_not_warmed_up(schedule: str) -> None:
    flags = ["--lr_scheduler_type", schedule, "--validation_file_dir", "d"]
    *_, training = parse_arguments("sft", [*flags, *OUT])
    assert (training.schedule, training.warmup_steps) == (schedule, 0)


@pytest.mark.parametrize("steps, warm", [("1", 0), ("33", 0), ("34", 0.03), ("-1", 0.03), ("1000", 0.03)])
def test_a_few_steps_are_not_warmed_up(steps: str, warm: float) -> None:
    """The first step of a warm-up has a rate of 0: of one step nothing would be left."""
    *_, training = parse_arguments("sft", ["--max_steps", steps, *OUT])
    assert training.warmup_steps == warm


def test_a_critic_learns_at_the_rate_that_was_given() -> None:
    ppo = ["--rl_algorithm", "ppo", *OUT]
    assert parse_arguments("rl", ppo)[-1].critic_learning_rate == 1e-5
    for more in (["--learning_rate", "5e-3"], ["--use_peft"]):
        assert parse_arguments("rl", [*ppo, *more])[-1].critic_learning_rate is None


def test_schedule_free_optimizers_have_neither() -> None:
    chosen = hftune_defaults("sft", {"optim": "schedule_free_adamw"}, stage_parser("sft").known)
    assert not {"lr_scheduler_type", "warmup_steps"} & chosen.keys()
    assert chosen["learning_rate"] == 2e-5


def test_every_row_names_an_argument_of_each_of_its_scripts() -> None:
    parsers = {kind: stage_parser("rl" if kind in algorithms() else kind, kind) for kind in KINDS}
    for row in OWN:
        assert {*row.kinds} <= {*KINDS}
        for kind in row.kinds or KINDS:
            assert row.name in parsers[kind].known, (row.name, kind)
        assert row.because
    everywhere = {name for parser in parsers.values() for name in parser.known}
    assert SAME.keys() <= everywhere


def test_help_shows_the_resolved_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for flags, shown in (([], "1e-06"), (["--use_peft"], "5e-05")):
        page = " ".join(help_page("dpo", [*flags, "--help"]).split())
        assert f"AdamW. (default: {shown})" in page


# --- the recipe -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, trained",
    [
        *[
            ({}, "full"),
            ({"use_peft": ""}, "lora"),
            ({"use_peft": "False"}, "full"),
            ({"from_config": "true"}, "scratch"),
        ],
        *[({"qlora": "True"}, "lora"), ({"peft_path": "a"}, "lora"), ({"train_new_tokens_only": "1"}, "lora")],
    ],
)
def test_what_is_trained(given: dict[str, str], trained: str) -> None:
    assert run_kind_of("sft", given).trained == trained
