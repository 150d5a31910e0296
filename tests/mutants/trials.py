"""Trials of faults: each in a copy of the repository, by a process forked from one with all imports but hftune's."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.faults import ROOT, Fault, groups
from tests.mutants.reach import Reach

MOST_SECONDS = 40.0
"""Of tests a fault, as they took when their reach was noted."""

_IMPORTED = """
import sys
from hftune.tools.parity.forks import import_everything
import_everything()
print("\\n".join(name for name in sys.modules if name.split(".")[0] not in ("hftune", "tests", "__main__")))
"""


@dataclass
class Trial:
    """A fault and what became of it: `killed`, `survived` or `late` (it did not end)."""

    fault: Fault
    tests: list[str]
    seconds: float
    outcome: str = ""


def chosen(fault: Fault, reached: dict[str, Reach]) -> tuple[list[str], float]:
    """The tests that meet a fault, those of the file with its name first, and the seconds that they take."""
    if fault.inside:
        found = _meeting({fault.file: _lines(fault)}, reached)
    else:
        # A test that looks at a constant itself reaches no line of its file.
        found = _meeting({**_uses(fault), fault.file: None}, reached, whole=True)
    stem, picked, spent = Path(fault.file).stem, [], 0.0
    for _, seconds, tests in sorted((Path(file).stem.removeprefix("test_") != stem, *rest) for file, *rest in found):
        if spent + seconds <= MOST_SECONDS or not picked:
            picked, spent = picked + tests, spent + seconds
    return picked, spent


def _meeting(
    met: dict[str, set[str] | None], reached: dict[str, Reach], *, whole: bool = False
) -> list[tuple[str, float, list[str]]]:
    """Test files with tests that reach such lines (None: any) of core files: their seconds, and these tests or all."""
    found = []
    for file, reach in reached.items():
        # With all cases of a test: what the first one computed may be remembered by the others.
        names = {
            name.split("[")[0]
            for core, wanted in met.items()
            for line, tests in reach.lines.get(core, {}).items()
            if wanted is None or line in wanted
            for name in tests
        }
        tests = [test for test in reach.seconds if test.split("[")[0] in names or file in names or (names and whole)]
        if tests:
            found.append((file, sum(map(reach.seconds.get, tests)), tests))
    return found


def _lines(fault: Fault) -> set[str]:
    """The lines where the fault is met, from where its statement begins."""
    return {str(line) for line in range(_statement(fault).lineno, fault.line + 1)}


def _uses(fault: Fault) -> dict[str, set[str] | None]:
    """By core file, the lines that name what an import executes: a constant, a field of a class, a default."""
    statement = _statement(fault)
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    names = [node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)]
    names = names or [name for name in [getattr(statement, "name", "")] if name]
    if not names:
        return {}  # a call at the import, say
    named = re.compile(rf"\b(?:{'|'.join(names)})\b")
    return {
        file: {str(number) for number, line in enumerate(lines, 1) if named.search(line)}
        for file, lines in _core_lines().items()
    }


def _statement(fault: Fault) -> ast.stmt:
    """The innermost one that holds a fault."""
    statements = [node for node in ast.walk(ast.parse(fault.source)) if isinstance(node, ast.stmt)]
    around = [node for node in statements if node.lineno <= fault.line <= (node.end_lineno or 0)]
    return max(around, key=lambda node: node.lineno)


@functools.cache
def _core_lines() -> dict[str, list[str]]:
    return {file: (ROOT / file).read_text().splitlines() for group in groups().values() for file in group["files"]}


def import_libraries() -> None:
    """What hftune imports of others, so that a fork has it already."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    asked = [sys.executable, "-c", _IMPORTED]
    names = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    os.environ.update(environment)
    for name in names.splitlines():
        try:
            importlib.import_module(name)
        except ImportError:  # put there by its library under a name that is no module's
            continue


@contextmanager
def copies(number: int) -> Iterator[list[Path]]:
    """Copies of what git knows, for so many trials at once."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        places = [Path(folder) / str(at) for at in range(number)]
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
        ).stdout.splitlines()
        for place in places:
            for name in filter(lambda name: (ROOT / name).is_file(), listed):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, place / name)
        yield places


def run_all(trials: list[Trial], places: list[Path]) -> Iterator[Trial]:
    """Each trial as it ends; as many at once as there are copies."""
    free, running = list(places), {}
    waiting = [trial for trial in trials if trial.tests]
    for trial in trials:
        if not trial.tests:  # no quick test reaches it
            trial.outcome = "survived"
            yield trial
    while waiting or running:
        while waiting and free:
            trial, place = waiting.pop(0), free.pop()
            running[_start(trial, place, len(waiting))] = (trial, place, time.monotonic())
        time.sleep(0.02)
        for child, (trial, place, began) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            late = time.monotonic() - began > 60 + 8 * trial.seconds
            if not ended and not late:
                continue
            if not ended:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            trial.outcome = "late" if not ended else "survived" if status == 0 else "killed"
            del running[child]
            free.append(place)
            shutil.copy2(ROOT / trial.fault.file, place / trial.fault.file)
            yield trial


def _start(trial: Trial, place: Path, number: int) -> int:
    """A process that runs the tests of a trial in a copy."""
    file = place / trial.fault.file
    file.write_text(trial.fault.source)
    # Compiled files are told by size and seconds: no two faults may have the same.
    os.utime(file, (number, 1_000_000_000 + number + 100_000 * os.getpid()))
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        os.chdir(place)
        sys.path.insert(0, str(place))
        for name in [name for name in sys.modules if name.split(".")[0] in ("hftune", "tests")]:
            del sys.modules[name]
        log = os.open(place.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            f"--rootdir={place}",
            f"--basetemp={place}-tmp",
        ]
        code = int(pytest.main([*options, *trial.tests]))
    finally:
        os._exit(code)
