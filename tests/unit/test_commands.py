"""Every command on every page, in both languages, goes through the parser of the script or subcommand that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from hftune.arguments.raw_arguments import COMMAND_LINE, given_on_command_line, take_config
from hftune.arguments.stage_table import STAGES, stage_of
from hftune.cli import COMMANDS, dispatch
from hftune.errors import UserError
from hftune.tools.pipeline.checking import stage_problems
from hftune.tools.pipeline.starting import take_own
from tests.documents import PAGES, ROOT, SHELL, Block, blocks, commands

LAUNCHERS = ("deepspeed", "torchrun", "srun", "python")
PROGRAMS = {
    *[
        "source",
        "export",
        "pip",
        "mkdir",
        "cd",
        "echo",
        "eval",
        "printf",
        "ls",
        "tail",
        "rsync",
        "git",
        "python3",
        "cp",
        "docker",
    ]
}
"""Programs of the system, which no test of this project can know."""
WORKERS = {
    "ask": "hftune.tools.asking:ask",
    "board": "hftune.tools.board.app:Path",
    "chat": "hftune.tools.chatting.chat:chat",
    "consolidate": "hftune.tools.consolidating:consolidate",
    "data": "hftune.tools.checking.run:check",
    "doctor": "hftune.tools.doctor.command:examine",
    "export": "hftune.tools.export.run:export",
    "init": "hftune.tools.init.folder:write_folder",
    "lineage": "hftune.tools.reporting.lineage:trace",
    "pipeline": "hftune.tools.pipeline.command:read_spec",
    "report": "hftune.tools.reporting.page:write_pages",
    "score": "hftune.tools.scoring:score",
    "serve": "hftune.tools.serving.run:serve",
    "teach": "hftune.tools.teaching.run:teach",
    "watch": "hftune.tools.watching:Path",
}
"""Subcommand -> what its entry calls once the command line is parsed: there a test stops."""
OWN_FLAGS = {"plan": {"gpus", "nodes", "json"}}


class Reached(Exception):
    """The command line was parsed."""


def faults(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the parser of a command refuses."""
    words = [word for word in words if word != "..."]
    try:
        return list(_faults(words, monkeypatch))
    except UserError as error:
        return [error.render()]


def _faults(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if words[0] == "hftune" and words[1:2] == ["launch"]:
        words = words[2:]
    if words[0].endswith("/python") or words[0] in LAUNCHERS:
        yield from _script(words)
    elif words[0] == "hftune":
        yield from _subcommand(words[1:], monkeypatch)
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        yield from (f"no target {word}" for word in words[1:] if "=" not in word and word not in targets)
    elif words[0] not in PROGRAMS:
        yield f"what is {words[0]}?"


def _script(words: list[str]) -> Iterator[str]:
    """A script of this repository, under a launcher or not."""
    at = next((n for n, word in enumerate(words) if n and (word.endswith(".py") or word == "-m")), None)
    if at is None:
        yield "no script"
        return
    name, rest = (words[at + 1], words[at + 2 :]) if words[at] == "-m" else (words[at], words[at + 1 :])
    if name == "hftune.cli":
        yield from _stage(rest[0], rest[1:]) if rest and stage_of(rest[0]) else ()
    elif stage_of(name):
        yield from _stage(name, rest, _processes(words[:at]))
    elif name == "merge_peft_adapter.py":
        yield from _merge(rest)
    elif not _shipped(name):
        yield f"no {name}"


def _shipped(name: str) -> bool:
    """Whether a script or module is here; of others, such as pytest, the first part is imported."""
    path = ROOT / (name if name.endswith(".py") else name.replace(".", "/"))
    return path.exists() or path.with_suffix(".py").exists() or name in ("pytest", "venv")


def _processes(launcher: list[str]) -> tuple[int, int]:
    """How many processes a launcher starts, and how many on each machine."""
    found = re.search(r"--(?:num_gpus|nproc_per_node)[ =](\d+)", " ".join(launcher))
    return (int(found[1]),) * 2 if found else (8, 8)


def _subcommand(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name, rest = words[0], words[1:]
    if name in STAGES:
        given, rest = take_own(rest)
        yield from _stage(name, rest, (given.nproc or 8, given.nproc or 8))
    elif name == "merge":
        yield from _merge(rest)
    elif name == "tokenize":
        yield from _stage(rest[0], rest[1:])
    elif name in ("plan", "preview") and rest and stage_of(rest[0]):
        yield from _stage(rest[0], _without(rest[1:], OWN_FLAGS.get(name, set())))
    elif name not in COMMANDS:
        yield f"no hftune {name}"
    elif name in WORKERS:
        with monkeypatch.context() as patched, pytest.raises(Reached):
            # What pages name on hubs and in stores is not there.
            patched.setattr("hftune.arguments.parser.located", lambda entries: entries)
            module, _, worker = WORKERS[name].partition(":")
            patched.setattr(import_module(module), worker, _reached)
            dispatch(words)


def _reached(*arguments: object, **others: object) -> None:
    raise Reached


def _without(argv: list[str], names: set[str]) -> list[str]:
    """The command line without some arguments and their values."""
    kept = [(name, values) for name, values in given_on_command_line(argv) if name.replace("-", "_") not in names]
    return [word for name, values in kept for word in (f"--{name}", *values)]


def _stage(script: str, argv: list[str], processes: tuple[int, int] = (8, 8)) -> Iterator[str]:
    """Problems that the pipeline's check finds in a stage's arguments; a file of `--config` is the reader's own."""
    _, rest = take_config(argv)
    given = {
        name.replace("-", "_"): values for name, values in given_on_command_line(rest) if name not in ("h", "help")
    }
    # There a flag may stand without a value.
    places = dict.fromkeys(given, COMMAND_LINE)
    yield from (problem.render() for problem in stage_problems(stage_of(script), given, places, processes))


def _merge(argv: list[str]) -> Iterator[str]:
    from hftune.arguments.merging import MergeParser

    parser = MergeParser()
    yield from (problem.render() for problem in parser.misfits(parser.translate(argv)))


def shell_blocks(page: Path) -> list[Block]:
    """The blocks of a page with commands: not the diffs of programs."""
    found = [block for block in blocks(page.read_text(encoding="utf-8")) if block.language in (*SHELL[:2], "diff")]
    return [block for block in found if not block.text.startswith("diff --git ")]


def made_by(page: Path) -> set[str]:
    """Names of files that the patches of a page make: its commands use them."""
    added = re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for path in added for name in (Path(path).name, Path(path).stem)}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_parsed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        f"line {block.line}: {' '.join(words)[:80]}": problems
        for block in shell_blocks(page)
        for words in commands(block)
        if not made_by(page) & {*words} and (problems := faults(words, monkeypatch))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("deepspeed run_sft.py --learning_rat 1 --lora_rank 8 --tool_format default", "learning_rat"),
        ("deepspeed --num_gpus 2 run_sft.py --deepspeed zero9", "zero9"),
        ("hftune plan run_sft --gpus 8xH200 --packin", "packin"),
        ("hftune sft --nproc 2 --nods 2 --max_steps 1", "nods"),
        ("hftune sft --max_steps many", "many"),
        ("hftune merge --lora_model A --nproc 2", "nproc"),
        ("hftune preview run_sft --gpus 8xH200", "gpus"),
        ("torchrun run_rl.py --rl_algorithm ppo --vf_coef 1 --num_generationz 4", "num_generationz"),
        ("python merge_peft_adapter.py --lora_model A --output_dir B --outptu C", "outptu"),
        ("hftune export gguf --model_name_or_path A --output_dir B --bits 4", "bits"),
        ("hftune ask --models A --question B", "question"),
        ("hftune doctor --fast", "--fast"),
        ("hftune lineage A B", "unrecognized arguments: B"),
        ("hftune pipeline walk FILE", "walk"),
        ("hftune walk", "no hftune walk"),
        ("hftune launch deepspeed run_sft.py --learning_rat 1", "learning_rat"),
        ("python examples/missing.py", "no examples/missing.py"),
        ("make everything", "no target everything"),
        ("hftun sft", "what is hftun?"),
    ],
)
def test_what_a_parser_refuses_is_found(command: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = faults(command.split(), monkeypatch)
    assert len(found) == 1 and said in found[0], found


@pytest.mark.parametrize(
    "command", ["hftune doctor --quick", "hftune chat A", "hftune serve A --adapter a=A --adapter b=B"]
)
def test_what_a_parser_takes_passes(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(command.split(), monkeypatch) == []
