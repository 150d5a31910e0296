"""Runs commands of hftune with a fault at the N-th change of the disk, for `tests/faults/test_injection.py`.

Started with the library of `fail_at.c` preloaded and every import done, it forks a child for each request (a line of
JSON), which arms the library and runs the command as its script would. A line of JSON answers: the exit code, and how
many calls a run without a fault makes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.forks import fork_and_wait, import_everything
from tests.warm import ROOT

MODULES = ("cli", "merging.merge", "merging.peft_model", "tools.reporting.page", "tools.scoring", "tools.consolidating")
SOURCE = Path(__file__).with_name("fail_at.c")
KILL = -1


class Injector:
    """A server with the library, which is built first."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        library = folder / "fail_at.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        self.folder = folder
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.injection.server", str(library)],
            cwd=ROOT,
            env=environment | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, argv: list[str], below: Path, when: int = 0, how: int = 0, lasting: bool = False) -> tuple[int, int]:
        """Run `argv` (a script or `hftune`, and its arguments) with a fault below a folder; exit code and calls.

        Args:
            argv: The command.
            below: Calls on files here count.
            when: The call that fails, from 1; 0: none.
            how: The errno that it fails with, or KILL.
            lasting: All calls after it fail as well.
        """
        assert self.server.stdin and self.server.stdout
        log, trace = self.folder / "log", self.folder / "trace"
        log.unlink(missing_ok=True)
        trace.unlink(missing_ok=True)
        asked = {"argv": argv, "below": str(below), "when": when, "how": how, "lasting": lasting}
        asked |= {"log": str(log), "trace": str(trace)}
        self.server.stdin.write(json.dumps(asked) + "\n")
        self.server.stdin.flush()
        code, calls = json.loads(self.server.stdout.readline())
        return code, calls

    @property
    def said(self) -> str:
        """What the last command printed."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def seen(self) -> list[tuple[str, str]]:
        """The calls of the last command in their order: what they do (write, rename, ...), and to which file."""
        lines = (self.folder / "trace").read_text(errors="replace").splitlines()
        calls = sorted((int(line.split(" ", 2)[0]), *line.split(" ", 2)[1:]) for line in lines)
        return [(kind, name) for _, kind, name in calls]

    def stop(self) -> None:
        """End the server."""
        assert self.server.stdin
        self.server.stdin.close()
        self.server.wait()


def serve() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    library = ctypes.CDLL(sys.argv[1])
    library.fail_at_calls.restype = ctypes.c_long
    import_everything()
    for module in MODULES:
        importlib.import_module(f"hftune.{module}")

    for line in sys.stdin:
        asked = json.loads(line)
        receive, send = os.pipe()
        code = fork_and_wait(functools.partial(start, asked, library, send), Path(asked["log"]), 1)
        os.close(send)
        with os.fdopen(receive, "rb") as pipe:
            calls = int(pipe.read() or b"0")
        answers.write(json.dumps([code, calls]) + "\n")
        answers.flush()


def start(asked: dict[str, Any], library: ctypes.CDLL, send: int) -> None:
    """Arm the library and run the command as Python's command line does."""
    sys.stdin = open(os.devnull)  # noqa: SIM115
    noted = os.open(asked["trace"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    when, how, lasting = ctypes.c_long(asked["when"]), ctypes.c_int(asked["how"]), int(asked["lasting"])
    library.fail_at_arm(asked["below"].encode(), when, how, lasting, noted)
    with contextlib.suppress(SystemExit):
        run_command(asked["argv"])
        os.write(send, str(library.fail_at_calls()).encode())


def run_command(argv: list[str]) -> None:
    """A script of the root, or `hftune`, as Python's command line runs it."""
    sys.argv = argv
    if argv[0] == "hftune":
        from hftune.cli import main

        main()
    else:
        sys.path[0] = str(ROOT)
        runpy.run_path(str(ROOT / argv[0]), run_name="__main__")


if __name__ == "__main__":
    serve()
