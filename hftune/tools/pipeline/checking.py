"""Checks every argument of every stage with the script's own parser, before anything starts.

Nothing is checked, and nothing imported, where all stages are finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Set
from dataclasses import fields
from pathlib import Path
from typing import Any

from hftune import child_processes
from hftune.arguments.merging import MergeParser
from hftune.arguments.names.translate import Entry
from hftune.arguments.parser import HftuneParser
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError, Preempted, UserError, raise_together
from hftune.on_demand import on_demand
from hftune.secrets import command_without_secrets, variable_says_secret
from hftune.stores.objects import is_url
from hftune.tools.pipeline.steps import COMMANDS, MERGE, Step

_PRINTED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""How the names of variables begin that DeepSpeed's launcher hands on: on a command line, which it prints."""


def exposures(step: Step) -> Iterator[ArgumentError]:
    """Problems: secrets that would be on the step's command line, each with its line in the file."""
    # What the runner will start: the Hub's token is in a variable by then, and no exposure.
    told = {name: [f"--{name}", *values] for name, values in step.with_quiet_token().arguments.items()}
    for name, words in {**told, "launcher": step.launcher.wrap("script", [])}.items():
        if command_without_secrets(words) != words:
            yield ArgumentError(
                f"{name} holds a secret, and command lines are shown by `ps` and in the launcher's log",
                place=step.places.get(name, step.place),
                fix="give it in a variable of the environment (env: {NAME: ...}; for the Hub HF_TOKEN), or in a file",
            )
    hands_on = step.launcher.kind == "deepspeed" and "hostfile" in step.launcher.options
    for name in sorted({**os.environ, **step.env}) if hands_on else ():
        if name.startswith(_PRINTED) and variable_says_secret(name):
            cause = f"DeepSpeed's launcher prints {name} as it hands it to other machines"
            fix = f"unset {name} here and set it on each machine, or launch with torchrun or srun"
            yield ArgumentError(cause, place=step.place, fix=fix)


def check_apart(file: Path) -> None:
    """`hftune pipeline check FILE`: in a process of its own, since this one forks, and need not hold torch for hours.

    Raises:
        Preempted: It was stopped.
        SystemExit: It has found something, and said it.
    """
    command = child_processes.python("-m", "hftune.cli", "pipeline", "check", str(file))
    code = child_processes.run(command, stdout=child_processes.DEVNULL).returncode
    # Ctrl-C goes to every process of the terminal's group: the child may end of it before this one hears.
    if code in (-2, 130):
        raise Preempted("stopped before anything started")
    if code:
        raise SystemExit(code)


def check_steps(steps: Iterable[Step]) -> None:
    """Check the arguments of all steps with their parsers.

    Raises:
        ArgumentError: All names and values that do not fit, each with its line in the file.
    """
    steps = list(steps)
    made = {f"{step.folder}" for step in steps}
    problems: list[UserError] = []
    for step in steps:
        problems += stage_problems(step.script, step.arguments, step.places, step.launcher.processes)
        problems += missing_files(step, made)
    # Steps of a sweep share lines of the file, so equal problems are told once.
    raise_together({problem.render(): problem for problem in problems}.values())


def stage_problems(
    script: str, arguments: dict[str, list[str]], places: dict[str, str], processes: tuple[int, int] | None
) -> Iterator[UserError]:
    """Problems of one stage: names that its script does not know, values it refuses, groups that do not fit."""
    argv = [token for name, values in arguments.items() for token in (f"--{name}", *values)]
    try:
        parser = _parser(script, argv)
        entries = [Entry(name, list(values), places.get(name, "")) for name, values in arguments.items()]
        outcome = parser.translated(entries, *(processes or (1, 1)))
    except UserError as problem:
        yield problem
        return
    yield from outcome.problems
    misfits = list(parser.misfits(outcome.entries))
    yield from misfits
    # Only on sound values: a group with a refused one would complain of the same argument again.
    if not misfits and not outcome.problems and script in STAGES:
        yield from _group_problems(outcome.entries, places, processes)


def _parser(script: str, argv: list[str]) -> HftuneParser:
    from hftune.arguments.stages import ScriptParser, parser_for

    if script == MERGE:
        return MergeParser()
    return ScriptParser([on_demand(COMMANDS[script])]) if script in COMMANDS else parser_for(script, argv)


def _group_problems(
    entries: list[Any], places: dict[str, str], processes: tuple[int, int] | None
) -> Iterator[UserError]:
    """Problems that the argument classes and the DeepSpeed config find in arguments taken together."""
    from hftune.arguments.adapter import AdapterArguments
    from hftune.arguments.data import DataArguments
    from hftune.arguments.model import ModelArguments
    from hftune.distributed.ds_config import read_ds_config
    from hftune.distributed.ds_features import Setting
    from hftune.distributed.ds_setup import check_ds_config

    for group in (ModelArguments, DataArguments, AdapterArguments):
        names = {entry.name for entry in fields(group)}  # mypy joins the classes to type
        try:
            HftuneParser([group]).made(entry for entry in entries if entry.name in names)
        except UserError as problem:
            yield _at(problem, places)
    given = {entry.name: str(entry.values[0]) for entry in entries if entry.values}
    if "deepspeed" in given:
        # What hangs on the device and on precision is said by the stage itself, before its model loads.
        nvme, world = given.get("nvme_path"), processes[0] if processes else 1
        setting = Setting(on_cpu=False, world_size=world, bf16=True, nvme_path=nvme)
        try:
            yield from check_ds_config(read_ds_config(given["deepspeed"]), setting)
        except UserError as problem:
            yield _at(problem, places)


def _at(problem: UserError, places: dict[str, str]) -> UserError:
    """The problem with its place moved to the line of the first argument that it names."""
    lines = [place for name, place in places.items() if f"--{name}" in str(problem.place)]
    return problem.at(lines[0] if lines else problem.place)


def missing_files(step: Step, made: Set[str] = frozenset()) -> Iterator[UserError]:
    """Problems of local data files that do not exist, and are in none of the folders that steps have `made`."""
    # Of these the registry knows the files.
    if step.arguments.get("dataset_dir"):
        return
    for name in ("train_file_dir", "validation_file_dir", "question_file"):
        for text in ",".join(step.arguments.get(name, [])).split(","):
            # `PATH#500` takes 500 records.
            path = text.strip().partition("#")[0]
            # OWNER/NAME may be a data set of the Hub: only the script can tell.
            local = path.startswith((".", "/", "~")) or path.count("/") != 1
            there = is_url(path) or Path(path).exists() or not made.isdisjoint(map(str, Path(path).parents))
            if path and local and not there:
                yield ArgumentError(
                    f"there is no {path}",
                    place=step.places.get(name),
                    fix="paths are relative to the working folder",
                )
