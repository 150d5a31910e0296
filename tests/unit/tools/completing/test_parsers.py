"""What completion knows of each command is what the command takes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from hftune.arguments.stages import stage_parser
from hftune.cli import ARGUMENTS, COMMANDS
from hftune.tools.completing.parsers import _FLAGS, _WORDS, _deepspeed, whole_command


@pytest.mark.parametrize("command", sorted({*_FLAGS, *_WORDS} - {"completion"}))
def test_words_and_flags_are_those_of_the_tool(command: str) -> None:
    module = import_module(COMMANDS[command].partition(":")[0])
    room = Path(str(module.__file__)).parent
    said = "".join(file.read_text() for file in room.glob("*.py"))
    assert [flag for flag in _FLAGS.get(command, ()) if f"{flag}" not in said] == []
    if command in ("init", "launch", "pipeline"):
        assert [word for word in _WORDS[command] if f'"{word}"' not in said] == []


def test_every_command_has_a_parser() -> None:
    (below,) = (action for action in whole_command(COMMANDS, {})._actions if action.choices)
    assert {*COMMANDS, "sft", "rl"} == {*below.choices} & {*COMMANDS, "sft", "rl"}


def test_arguments_are_those_of_the_parser() -> None:
    (below,) = (action for action in whole_command(["merge", "teach"], ARGUMENTS)._actions if action.choices)
    sft = {flag for action in below.choices["sft"]._actions for flag in action.option_strings}
    known = {
        f"--{name}" for name, action in stage_parser("sft").known.items() if name == action.dest and action.nargs != 0
    }
    assert known | {"--config", "--nproc", "--nodes", "--launcher", "--hostfile"} == sft
    rl = {flag for action in below.choices["rl"]._actions for flag in action.option_strings}
    assert {"--kl_target", "--num_generations", "--epsilon_high"} <= rl, "of all algorithms"
    merge = {flag for action in below.choices["merge"]._actions for flag in action.option_strings}
    assert "--peft_model_path" in merge


def test_deepspeed_configs_by_name() -> None:
    assert {"zero2", "zero3_offload"} <= {*_deepspeed()["fish"].split()}
