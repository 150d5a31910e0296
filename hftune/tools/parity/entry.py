"""`hftune parity`: whether training on this machine gives the right numbers."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from hftune import child_processes
from hftune.constants import SHIPPED
from hftune.errors import ArgumentError, did_you_mean
from hftune.visible import say

if TYPE_CHECKING:
    from hftune.tools.parity.measure import Outcome
    from hftune.tools.parity.rows import Row

HELP = """Trains tiny random models with the real scripts, in many ways that must give the same numbers, and compares.

hftune parity                              all rows: about ten minutes on two cores
hftune parity --only "*zero3*" "RM*"       rows whose words match a pattern
hftune parity --list                       the rows, without running any
--work DIR                                 keep the runs there, with their logs
--write-docs                               put the table into docs/parity.md (in a checkout)

On a machine with GPUs, runs compute in bf16 on them, and tolerances are those of bf16; rows for more processes than
there are GPUs are left out. `CUDA_VISIBLE_DEVICES= hftune parity` asks the processor. Exit code 1: a row fails."""
_FLAGS = ("--only", "--list", "--work", "--write-docs")
_COUNT = "import torch; print(torch.cuda.device_count())"


def parity(argv: list[str]) -> None:
    """Measure rows and say what came of them.

    Raises:
        ArgumentError: A word that means nothing, or no row.
        SystemExit: With 1 where a row fails.
    """
    if {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    only, work, listed, written = taken(argv)
    # One thread: forks come from this process, and a pool's threads stay behind in it. Before torch is imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    from hftune.tools.parity.table import all_rows

    rows = [row for row in all_rows() if chosen(row, only)]
    if not rows:
        raise ArgumentError(f"no row matches {' '.join(only)}", place="--only", fix="see `hftune parity --list`")
    if listed:
        say("\n".join(f"{row.group}: {row.what}" for row in rows))
        return
    folder = Path(work or tempfile.mkdtemp(prefix="hftune-parity-"))
    began = time.time()
    outcomes = measured(rows, folder)
    _finish(outcomes, folder if work is None else None, time.time() - began, written=written)


def chosen(row: Row, only: Sequence[str]) -> bool:
    """Whether a pattern matches the row's words, or its group."""
    return not only or any(fnmatch(text.lower(), pattern.lower()) for text in (row.what, row.group) for pattern in only)


def measured(rows: Sequence[Row], folder: Path) -> list[Outcome]:
    """All rows, each said as it is known."""
    gpus = _gpus()
    from hftune.tools.parity import forks
    from hftune.tools.parity.measure import measure
    from hftune.tools.parity.page import line
    from hftune.tools.parity.runs import Lab

    lab = Lab(folder, gpus)
    forks.import_everything()
    found = []
    for number, row in enumerate(rows, start=1):
        found.append(measure(row, lab))
        say(f"{number}/{len(rows)} {line(found[-1])}", flush=True)
    return found


def _finish(outcomes: Sequence[Outcome], remove: Path | None, seconds: float, *, written: bool) -> None:
    from hftune.checkpoints.machine import describe_machine
    from hftune.tools.parity.page import line, tables, write_docs

    failed = [each for each in outcomes if not (each.holds or each.left_out or each.row.upstream)]
    held = sum(each.holds for each in outcomes)
    say(f"{held} of {len(outcomes)} rows hold, in {seconds:.0f} s")
    if written:
        machine = describe_machine()
        where = f"{machine['processor']} ({os.cpu_count()} cores), float32"
        write_docs(SHIPPED / "docs" / "parity.md", tables(outcomes, where, seconds))
    if remove is not None and not failed:
        shutil.rmtree(remove)
    if failed:
        kept = f"; their logs are in {remove}" if remove else ""
        say(f"{len(failed)} rows fail{kept}:\n" + "\n".join(line(each) for each in failed))
        raise SystemExit(1)


def _gpus() -> int:
    """GPUs of this machine, asked in another process: one that has touched a GPU cannot fork any more."""
    answer = child_processes.run(child_processes.python("-c", _COUNT), stdout=child_processes.PIPE).stdout.strip()
    return int(answer) if answer.isdecimal() else 0


def taken(argv: Sequence[str]) -> tuple[list[str], str | None, bool, bool]:
    """Patterns, the folder to keep, whether to list, whether to write the page.

    Raises:
        ArgumentError: Another word.
    """
    only: list[str] = []
    work, behind = None, ""
    for word in argv:
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            value, name = word, behind
        behind = name
        if name == "--only":
            only += [value] if value else []
        elif name == "--work":
            work = value or None
        elif name not in ("--list", "--write-docs") or equals or not word.startswith("--"):
            fix = f"{did_you_mean(word.partition('=')[0], _FLAGS)} hftune parity --help".strip()
            raise ArgumentError(f"`hftune parity` has no {word}", fix=fix)
    if "--work" in argv and work is None:
        raise ArgumentError("--work needs a folder", place="--work", fix="--work parity-runs")
    return only, work, "--list" in argv, "--write-docs" in argv
