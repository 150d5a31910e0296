"""The table of stages: what a stage shares with the one that it is based on."""

from __future__ import annotations

import pytest

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.arguments.names.row import ALIAS, Row
from hftune.arguments.preference import DPOArguments
from hftune.arguments.stage_table import STAGES, Stage, base_stage, stage_of, take_script
from hftune.arguments.stages import stage_parser
from hftune.errors import ArgumentError
from hftune.preflight.check_run import rules_of


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that is based on SFT, and one on DPO."""
    monkeypatch.setitem(STAGES, "other", Stage("something else", STAGES["sft"].arguments, based_on="sft"))
    monkeypatch.setitem(STAGES, "pairs", Stage("something else", STAGES["dpo"].arguments, based_on="dpo"))


@pytest.mark.parametrize("stage", STAGES)
def test_every_script_takes_what_deepspeeds_launcher_adds(stage: str) -> None:
    (_, _, _, args) = parse_arguments(stage, ["--local_rank=0", "--model_name_or_path", "m", "--output_dir", "o"])
    assert args.output_dir == "o"


def test_base_stage(other: None) -> None:
    assert [base_stage(name) for name in ("other", "pairs", "rl", "merge", "")] == ["sft", "dpo", "rl", "merge", ""]


def test_it_has_its_defaults_and_names(other: None) -> None:
    parser, plain = stage_parser("other"), stage_parser("sft")
    assert parser.done_by_hftune == plain.done_by_hftune and "shuffle_dataset" in parser.done_by_hftune
    # transformers' own is "linear".
    assert [one.run_defaults([])["lr_scheduler_type"] for one in (parser, plain)] == ["cosine", "cosine"]
    row = Row("seq", "", ALIAS, to={"sft": "max_length", "pt": "block_size"})
    assert [row.target(name) for name in ("other", "pt", "pairs")] == ["max_length", "block_size", None]


def test_values_of_other_tools_mean_what_they_mean_there(other: None) -> None:
    """`calculate_per_token_loss` is what SFT does and DPO does not."""
    assert stage_parser("other").translate(["--calculate_per_token_loss", "True"]) == []
    with pytest.raises(ArgumentError, match="every pair or answer"):
        stage_parser("pairs").translate(["--calculate_per_token_loss", "True"])


def test_it_has_its_rules(other: None) -> None:
    assert [rule.__name__ for rule in rules_of("pairs")] == [rule.__name__ for rule in rules_of("dpo")]
    assert "check_preferences" not in {rule.__name__ for rule in rules_of("other")}


@pytest.mark.parametrize(
    ("word", "stage"),
    [
        ("run_sft.py", "sft"),
        ("run_sft", "sft"),
        ("rl", "rl"),
        ("sft.py", "sft"),
        ("run_kto", ""),
        ("--sft", ""),
        ("", ""),
    ],
)
def test_how_a_script_is_written(word: str, stage: str) -> None:
    assert stage_of(word) == stage


def test_the_arguments_behind_it() -> None:
    assert take_script(["run_dpo.py", "--beta", "0.2"], "plan") == ("dpo", ["--beta", "0.2"])


@pytest.mark.parametrize("argv", [[], ["--beta", "run_dpo"], ["run_kto"]])
def test_a_command_without_one(argv: list[str]) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"`hftune plan` needs the script.*\n.*run_pt, run_sft, run_rm, run_dpo, run_distill",
    ):
        take_script(argv, "plan")


def test_groups_of_arguments_have_names_and_an_order() -> None:
    run = parse_arguments("dpo", ["--output_dir", "out"])
    assert isinstance(run.training, DPOArguments) and isinstance(run.data, DataArguments)
    assert run == (run.model, run.data, run.adapter, run.training)
    with pytest.raises(AttributeError):
        run.training = None  # type: ignore[misc,assignment]
