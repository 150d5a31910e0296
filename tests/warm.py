"""Starts scripts in processes that have their imports already: `python -m tests.warm` forks them on demand.

What starts is the user's script with the user's arguments, told its rank and world by the variables that a launcher
sets; only the launcher itself and twelve seconds of imports are left out. A line of JSON asks ({"script", "flags",
"processes", "environment", "log", "limit"}), a line with the exit code answers.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.forks import fork, fork_and_wait, import_everything

ROOT = Path(__file__).parents[1]


class WarmStarter:
    """Asks a server of its own, which starts with the first script.

    Args:
        root: Where scripts, `hftune/` and `tests/` are: the repository, or a copy of it.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.server: subprocess.Popen[str] | None = None

    def run(
        self, script: str, flags: tuple[str, ...], processes: int, environment: dict[str, str], limit: float
    ) -> tuple[int, str]:
        """Run it in so many processes; the exit code, and what all of them said."""
        with tempfile.NamedTemporaryFile("r", suffix=".log", errors="replace") as log:
            asked = {
                "script": script,
                "flags": flags,
                "processes": processes,
                "environment": environment,
                "log": log.name,
                "limit": limit,
            }
            return self._ask(asked), log.read()

    def at_terminal(self, terminal: str, script: str, flags: Sequence[str], environment: dict[str, str]) -> int:
        """Start it in a session of its own at a terminal; the process id of what is the session's shell."""
        asked = {"script": script, "flags": [*flags], "environment": environment, "terminal": terminal}
        return self._ask(asked)

    def _ask(self, asked: dict[str, Any]) -> int:
        server = self.server = self.server or start_server(asked["environment"], self.root)
        assert server.stdin and server.stdout
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the server that forks scripts has died"
        return int(json.loads(answer))

    def stop(self) -> None:
        """End the server."""
        if self.server is not None:
            assert self.server.stdin
            self.server.stdin.close()
            self.server.wait()


def start_server(environment: dict[str, str], root: Path = ROOT) -> subprocess.Popen[str]:
    """One thread a process: a fork must not inherit a pool whose threads stayed behind."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.warm"],
        cwd=root,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def serve() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    import_everything()
    count_cores_once()
    for line in sys.stdin:
        asked = json.loads(line)
        if terminal := asked.get("terminal"):
            answer = fork(functools.partial(shell, asked), Path(terminal), 0, 1, 0)
        else:
            begin, log = functools.partial(start, asked), Path(asked["log"])
            answer = fork_and_wait(begin, log, asked["processes"], asked["limit"])
        answers.write(f"{answer}\n")
        answers.flush()


def count_cores_once() -> None:
    """DeepSpeed starts `numactl` to count CPUs as devices, 180 times in ten steps of ZeRO-3."""
    from deepspeed.utils import numa

    numa.get_numa_cores = functools.cache(numa.get_numa_cores)


def shell(asked: dict[str, Any]) -> None:
    """Be the shell of a session at a terminal: it hears no signal, starts the script, and stays when that has ended."""
    os.setsid()
    os.dup2(os.open(asked["terminal"], os.O_RDWR), 0)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    child = fork(functools.partial(start_there, asked), Path(asked["terminal"]), 0, 1, 0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(1, f"EXIT CODE {code if code >= 0 else 128 - code}\n".encode())
    while True:
        time.sleep(1)


def start_there(asked: dict[str, Any]) -> None:
    """Run the script with the terminal's streams, and signals as Python sets them."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    start(asked)


def start(asked: dict[str, Any]) -> None:
    """Run the script as Python's command line does."""
    os.environ.update(asked["environment"])
    if "terminal" not in asked:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.argv = [asked["script"], *asked["flags"]]
    sys.path[0] = str((ROOT / asked["script"]).parent)
    runpy.run_path(str(ROOT / asked["script"]), run_name="__main__")


if __name__ == "__main__":
    serve()
