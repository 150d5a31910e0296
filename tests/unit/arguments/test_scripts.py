"""Commands whose first word is a script."""

from __future__ import annotations

import pytest

from hftune.arguments.stage_table import stage_of, take_script
from hftune.errors import ArgumentError


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
