"""Completion in a real shell: commands, arguments and values, without starting anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import stage_parser
from hftune.cli import COMMANDS
from hftune.tools.completing.scripts import _FLAGS, _WORDS, script, whole_command

ASK = """
source {script}
cd {folder}
while read -r line; do
  read -ra COMP_WORDS <<< "$line"
  [[ $line == *" " ]] && COMP_WORDS+=("")
  [[ $line == *" _" ]] && COMP_WORDS[${{#COMP_WORDS[@]}}-1]=""
  COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_LINE=$line COMP_POINT=${{#line}}
  COMPREPLY=()
  _shtab_hftune
  echo ":" "${{COMPREPLY[@]}}"
done
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "hftune.bash").write_text(script("bash", {name: each.arguments for name, each in COMMANDS.items()}))
    return folder


def proposed(folder: Path, *lines: str) -> list[list[str]]:
    """What bash proposes behind each line; ` _` at its end stands for nothing yet. No program can be started."""
    asked = ASK.format(script=folder / "hftune.bash", folder=folder)
    bash = str(shutil.which("bash"))
    done = subprocess.run(
        [bash, "--norc", "-c", asked],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": str(folder / "nothing")},
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [line.split(":", 1)[1].split() for line in done.stdout.splitlines()]


LINES: list[tuple[str, set[str], set[str]]] = [
    ("hftune _", {*STAGES, *COMMANDS}, {"--learning_rate"}),
    ("hftune sf", {"sft"}, {"pt"}),
    ("hftune sft --learning_r", {"--learning_rate"}, {"--lora_r", "--learning-rate"}),
    ("hftune sft --packing_strategy b", {"bfd", "bfd_split"}, {"wrapped"}),
    ("hftune sft --use_peft _", {"True", "False"}, set()),
    ("hftune sft --launcher _", {"deepspeed", "torchrun", "srun", "none"}, set()),
    ("hftune sft --output_dir out --deepspeed zero2", {"zero2", "zero2_offload"}, {"zero3"}),
    ("hftune sft --use_peft True --lora_", {"--lora_r", "--lora_alpha"}, {"--learning_rate"}),
    ("hftune sft --reward", set(), {"--reward_funcs"}),
    ("hftune rl --vf_c", {"--vf_coef"}, set()),
    ("hftune rl --reward_funcs accuracy --num_gen", {"--num_generations"}, set()),
    ("hftune plan _", {*STAGES}, {"run"}),
    ("hftune pipeline _", {"run", "plan", "check"}, set()),
    ("hftune pipeline run --dr", {"--dry_run"}, set()),
    ("hftune export _", {"gguf", "ollama", "hub"}, set()),
    ("hftune export gguf --model", {"--model_name_or_path"}, set()),
    ("hftune explain lora_ra", {"lora_rank"}, set()),
    ("hftune merge --peft", {"--peft_model_path"}, set()),
    ("hftune teach --teacher_m", {"--teacher_model_name_or_path"}, set()),
]
"""A line, some of what is proposed behind it, and what is not."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash(scripts: Path) -> None:
    found = proposed(scripts, *(line for line, _, _ in LINES))
    for (line, some, none), words in zip(LINES, found, strict=True):
        assert some <= {*words} and not none & {*words}, (line, words)


@pytest.mark.parametrize("command", sorted({*_FLAGS, *_WORDS} - {"completion"}))
def test_words_and_flags_are_those_of_the_tool(command: str) -> None:
    module = import_module(COMMANDS[command].run.partition(":")[0])
    room = Path(str(module.__file__)).parent
    said = "".join(file.read_text() for file in room.glob("*.py"))
    assert [flag for flag in _FLAGS.get(command, ()) if f"{flag}" not in said] == []
    if command in ("init", "launch", "pipeline"):
        assert [word for word in _WORDS[command] if f'"{word}"' not in said] == []


def test_arguments_are_those_of_the_parser() -> None:
    (below,) = (action for action in whole_command({"merge": COMMANDS["merge"].arguments})._actions if action.choices)
    sft = {flag for action in below.choices["sft"]._actions for flag in action.option_strings}
    known = {
        f"--{name}" for name, action in stage_parser("sft").known.items() if name == action.dest and action.nargs != 0
    }
    assert known | {"--config", "--nproc", "--nodes", "--launcher", "--hostfile"} == sft
    rl = {flag for action in below.choices["rl"]._actions for flag in action.option_strings}
    assert {"--vf_coef", "--num_generations", "--epsilon_high"} <= rl, "of all algorithms"
    merge = {flag for action in below.choices["merge"]._actions for flag in action.option_strings}
    assert "--peft_model_path" in merge
