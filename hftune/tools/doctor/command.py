"""`hftune doctor`: all findings, in order."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

from hftune.constants import USER_ERROR_EXIT_CODE
from hftune.distributed import launch
from hftune.tools.doctor import launching, libraries, machine
from hftune.tools.doctor.findings import WRONG, Finding, render, to_json
from hftune.tools.words import Words
from hftune.visible import say

HELP = """What this machine has for a run, and what is wrong with it. Nothing is changed, nothing downloaded.

hftune doctor [FOLDER ...]      looks at libraries, GPUs, memory, folders and the environment, and has DeepSpeed's
                                launcher start a process for each GPU (without GPUs two) that add up a tensor
--quick                         starts no processes
--train                         trains tiny models as well, in ways that must give the same numbers: some minutes
--json                          one JSON object instead of lines

FOLDER: where results will be written. Exit code 2 where something is wrong."""


def main(argv: list[str]) -> None:
    """Print what was found.

    Raises:
        ArgumentError: An unknown flag.
        SystemExit: With code 2, something is wrong.
    """
    if {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    words = Words("hftune doctor")
    words.add_argument("folders", nargs="*")
    for flag in ("--quick", "--train", "--json"):
        words.add_argument(flag, action="store_true")
    given = words.parse_args(argv)
    found = list(examine(given.folders, quick=given.quick, train=given.train))
    say(to_json(found) if given.json else render(found))
    if any(one.level == WRONG for one in found):
        raise SystemExit(USER_ERROR_EXIT_CODE)


def examine(folders: list[str], *, quick: bool, train: bool = False) -> Iterator[Finding]:
    """All findings, in the order in which they are shown."""
    environment = dict(os.environ)  # as the user has it
    # It sets variables of its own, which must not be reported as the user's.
    launch.prepare_environment()
    python, requires = libraries.own_requirements()
    yield libraries.check_python(platform.python_version(), python)
    yield from libraries.check_requirements(requires)
    yield from libraries.check_optional()
    # Heavy packages are imported, in processes of their own: seconds each.
    if not quick:
        yield from libraries.check_loading(libraries.LOADED)
        yield from libraries.check_symbols()
    found = machine.gpus()
    yield from machine.check_gpus(found)
    yield from machine.check_host(has_gpu=bool(found.seen))
    yield from machine.check_folders(machine.folders(folders))
    yield from machine.check_variables(environment)
    if not quick:
        # Without GPUs two processes: a single one would have nobody to reach.
        yield from launching.check_launch(len(found.seen) or 2)
    if train:
        from hftune.tools.doctor.training import check_training  # brings transformers' models

        yield from check_training(len(found.seen), environment)
