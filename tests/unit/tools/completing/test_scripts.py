"""What a shell completes: the parser of everything that shtab is given, and a script for each shell."""

from __future__ import annotations

import argparse
import functools
from importlib import import_module
from pathlib import Path

import pytest

from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import stage_parser
from hftune.cli import COMMANDS
from hftune.tools.completing.scripts import _FLAGS, _WORDS, script, whole_command

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
        (["sft"], "--launcher", {"deepspeed", "torchrun", "srun", "none"}),
        (["sft"], "--deepspeed", {"zero2", "zero2_offload", "zero3"}),
        (["rl"], "--rl_algorithm", {"ppo", "grpo"}),
        (["plan"], "", {*STAGES}),
        (["pipeline"], "", {"run", "plan", "check"}),
        (["export"], "", {"gguf", "ollama", "hub"}),
        (["explain"], "", {"lora_rank"}),
    ],
)
def test_choices(words: list[str], flag: str, some: set[str]) -> None:
    assert some <= {*(flags(*words)[flag].choices or ())}


@pytest.mark.parametrize(
    ("words", "some", "none"),
    [
        (["sft"], {"--learning_rate", "--nproc", "--config"}, {"--learning-rate", "--lora_rank", "--reward_funcs"}),
        (["rl"], {"--vf_coef", "--num_generations", "--epsilon_high"}, {"--block_size"}),  # of all algorithms
        (["pipeline"], {"--dry_run", "--help"}, {"--learning_rate"}),
        (["export", "gguf"], {"--model_name_or_path"}, set()),
        (["merge"], {"--peft_model_path"}, {"--nproc"}),
        (["teach"], {"--teacher_model_name_or_path"}, set()),
    ],
)
def test_flags(words: list[str], some: set[str], none: set[str]) -> None:
    assert some <= flags(*words).keys() and none.isdisjoint(flags(*words))


def test_arguments_are_those_of_the_parser() -> None:
    known = {
        f"--{name}" for name, action in stage_parser("sft").known.items() if name == action.dest and action.nargs != 0
    }
    assert known | {"--config", "--nproc", "--nodes", "--launcher", "--hostfile"} == flags("sft").keys()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str) -> None:
    made = script(shell, {"merge": ARGUMENTS["merge"]})
    assert all(word in made for word in ("learning_rate", "peft_model_path", "zero2_offload", "bfd_split"))
    assert (shell != "zsh" or ":_files" in made) and ("__fish_complete_path" in made) == (shell == "fish")


@pytest.mark.parametrize("command", sorted({*_FLAGS, *_WORDS} - {"completion"}))
def test_words_and_flags_are_those_of_the_tool(command: str) -> None:
    module = import_module(COMMANDS[command]["run"].partition(":")[0])
    room = Path(str(module.__file__)).parent
    said = "".join(file.read_text() for file in room.glob("*.py"))
    assert [flag for flag in _FLAGS.get(command, ()) if f"{flag}" not in said] == []
    if command in ("init", "launch", "pipeline"):
        assert [word for word in _WORDS[command] if f'"{word}"' not in said] == []
