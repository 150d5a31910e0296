"""Checks every argument of every stage with the script's own parser, before anything starts.

The parsers bring TRL and torch along, so they run in a process of their own: `python -m
hftune.tools.pipeline.checking` reads the stages as JSON and prints what is wrong. Nothing is checked, and nothing
imported, where all stages are finished.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hftune import child_processes
from hftune.arguments.merging import MergeParser
from hftune.arguments.names.translate import Entry
from hftune.arguments.parser import HftuneParser
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError, Preempted, UserError, raise_together, sent, to_send
from hftune.logging import notice
from hftune.on_demand import on_demand
from hftune.secrets import command_without_secrets, variable_says_secret
from hftune.stores.objects import is_url
from hftune.tools.pipeline.state import HUB_TOKENS
from hftune.tools.pipeline.step import COMMANDS, MERGE, PRINTED, Step
from hftune.visible import say


def with_quiet_token(step: Step) -> Step:
    """The step with the Hub's token in HF_TOKEN instead of on its command line."""
    # The last one counts, as on a command line.
    tokens = [values[-1] for name, values in step.arguments.items() if name in HUB_TOKENS and values]
    arguments = {name: values for name, values in step.arguments.items() if name not in HUB_TOKENS}
    return replace(step, arguments=arguments, env={**step.env, "HF_TOKEN": tokens[-1]}) if tokens else step


def exposures(step: Step) -> Iterator[ArgumentError]:
    """Problems: secrets that would be on the step's command line, each with its line in the file."""
    # What the runner will start: the Hub's token is in a variable by then, and no exposure.
    for name, values in with_quiet_token(step).arguments.items():
        words = [f"--{name}", *values]
        if command_without_secrets(words) != words:
            yield ArgumentError(
                f"{name} holds a secret, and command lines are shown by `ps` and in the launcher's log",
                place=step.places.get(name, step.place),
                fix=_way_out(name, step.arguments[name]),
            )
    # The launcher's own options, apart from the script's arguments.
    launched = step.launcher.wrap("script", [])
    if command_without_secrets(launched) != launched:
        cause = f"the launcher {step.launcher.kind} is given a secret, and command lines are shown by `ps`"
        yield ArgumentError(cause, place=step.place, fix="give it in the environment: env: {NAME: ...}")
    if step.launcher.other_machines:
        # To reach other machines a variable is put on an `ssh` or pdsh command line there, and into the launcher's log.
        for name in sorted({**os.environ, **step.env}):
            if name.startswith(PRINTED) and variable_says_secret(name):
                fix = f"unset {name} here and set it on each machine, or launch with torchrun or srun"
                cause = f"DeepSpeed's launcher prints {name} as it hands it to other machines"
                yield ArgumentError(cause, place=step.place, fix=fix)


def _way_out(name: str, values: list[str]) -> str:
    if name == "deepspeed" and "".join(values).lstrip().startswith("{"):
        return (
            "write the config to a file and name that, or give the secret in a variable, as COMET_API_KEY: env: {...}"
        )
    return "give it in a variable of the environment (env: {NAME: ...}; for the Hub HF_TOKEN), or in a file"


def say_variables_not_passed_on(steps: Iterable[Step], environment: Mapping[str, str]) -> None:
    """Say which variables do not reach other machines: DeepSpeed's launcher passes on only some."""
    missing: dict[str, None] = {}
    for step in map(with_quiet_token, steps):
        names = [*step.env, *(["HF_TOKEN"] if "HF_TOKEN" in environment else [])]
        missing |= dict.fromkeys(name for name in names if step.launcher.loses(name))
    if missing:
        # `hf auth login` stores it in a file on each machine, which needs no variable.
        token = "; for the Hub's token run `hf auth login` on each machine" if "HF_TOKEN" in missing else ""
        notice(f"the launcher does not hand {', '.join(missing)} to other machines: set them there{token}")


def check_steps(steps: Iterable[Step]) -> None:
    """Check the arguments of all steps with their parsers.

    Raises:
        ArgumentError: Secrets on command lines; all names and values that do not fit, each with its line in the file.
    """
    steps = list(steps)
    # Secrets first: messages of the parsers quote what was typed. Steps of a sweep share lines of the file, so equal
    # problems are told once.
    raise_together({problem.render(): problem for step in steps for problem in exposures(step)}.values())
    say_variables_not_passed_on(steps, os.environ)
    problems = _asked_separately(steps)
    made = {f"{step.folder}" for step in steps}
    problems += [problem for step in steps for problem in missing_files(step, made)]
    raise_together({problem.render(): problem for problem in problems}.values())


def _asked_separately(steps: list[Step]) -> list[UserError]:
    """All problems that `stage_problems` finds, in a process of its own."""
    asked = [
        {
            "script": step.script,
            "arguments": step.arguments,
            "places": step.places,
            "processes": step.launcher.processes,
        }
        for step in steps
    ]
    finished = child_processes.run(
        child_processes.python("-m", "hftune.tools.pipeline.checking"), input=json.dumps(asked), capture_output=True
    )
    # Ctrl-C goes to every process of the terminal's group: the child may end of it before this one hears.
    if finished.returncode in (-2, 130):
        raise Preempted("stopped before anything started")
    if finished.returncode:
        raise RuntimeError(f"the arguments could not be checked:\n{finished.stderr}")
    # The last line: libraries may have printed others before it.
    return [sent(*problem) for problem in json.loads(finished.stdout.splitlines()[-1])]


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
    from hftune.arguments.raw_arguments import joined
    from hftune.distributed.ds_config import read_ds_config
    from hftune.distributed.ds_features import Setting
    from hftune.distributed.ds_setup import check_ds_config

    for group in (ModelArguments, DataArguments, AdapterArguments):
        names = {entry.name for entry in fields(group)}  # mypy joins the classes to type
        flat = [
            token
            for entry in entries
            if entry.name in names
            for token in (f"--{entry.name}", *map(str, joined(entry.name, entry.values)))
        ]
        try:
            HftuneParser([group]).parse_args_into_dataclasses(args=flat, look_for_args_file=False)
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


def main() -> None:
    """Read stages from stdin as JSON, print their problems to stdout as JSON."""
    asked = json.load(sys.stdin)
    # Some libraries print on stdout when they are imported, which belongs to the answer.
    with contextlib.redirect_stdout(sys.stderr):
        found = [problem for entry in asked for problem in stage_problems(**entry)]
    say(json.dumps([to_send(problem) for problem in found]))


if __name__ == "__main__":
    main()
