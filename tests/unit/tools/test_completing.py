"""What a shell completes: the parser of everything that shtab is given, and a script for each shell."""

from __future__ import annotations

import argparse
import functools

import pytest

from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import stage_parser
from hftune.cli import COMMANDS, dispatch
from hftune.errors import ArgumentError
from hftune.tools.completing import script, whole_command

ARGUMENTS = {name: row["arguments"] for name, row in COMMANDS.items()}


@functools.cache
def everything() -> argparse.ArgumentParser:
    return whole_command(ARGUMENTS)


def flags(*words: str) -> dict[str, argparse.Action]:
    """The flags behind some words, and what may stand in their place as ""."""
    parser = everything()
    for word in words:
        (below,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = below.choices[word]
    return {(action.option_strings or [""])[0]: action for action in parser._actions}


@pytest.mark.parametrize(
    ("words", "flag", "some"),
    [
        ([], "", {*STAGES, *COMMANDS}),
        (["sft"], "--packing_strategy", {"bfd", "wrapped"}),
        (["sft"], "--use_peft", {"True", "False"}),
        (["sft"], "--deepspeed", {"zero2", "zero2_offload", "zero3"}),
        (["rl"], "--rl_algorithm", {"ppo", "grpo"}),
        (["export"], "", {"gguf", "ollama", "hub"}),
    ],
)
def test_choices(words: list[str], flag: str, some: set[str]) -> None:
    assert some <= {*(flags(*words)[flag].choices or ())}


def test_flags() -> None:
    known = {name for name, action in stage_parser("sft").known.items() if name == action.dest and action.nargs != 0}
    assert {f"--{name}" for name in (*known, "config", "nproc", "nodes", "launcher", "hostfile")} == flags("sft").keys()
    assert {"--vf_coef", "--num_generations", "--epsilon_high"} <= flags("rl").keys(), "of all algorithms"
    assert "--model_name_or_path" in flags("export", "gguf") and "--teacher_model_name_or_path" in flags("teach")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str) -> None:
    made = script(shell, {"merge": ARGUMENTS["merge"]})
    assert all(word in made for word in ("learning_rate", "peft_model_path", "zero2_offload", "bfd_split"))
    assert (shell != "zsh" or ":_files" in made) and ("__fish_complete_path" in made) == (shell == "fish")


def test_a_shell_that_is_not_known() -> None:
    with pytest.raises(ArgumentError, match="invalid choice: 'csh'"):
        dispatch(["completion", "csh"])
