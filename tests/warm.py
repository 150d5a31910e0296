"""Starts scripts in processes that have their imports already: `python -m tests.warm` forks them on demand.

What starts is the user's script with the user's arguments, told its rank and world by the variables that a launcher
sets; only the launcher itself and twelve seconds of imports are left out. A line of JSON asks ({"script", "flags",
"processes", "environment", "log", "limit"}), a line with the exit code answers.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hftune.tools.parity.forks import fork_and_wait, import_everything

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
        server = self.server = self.server or start_server(environment, self.root)
        assert server.stdin and server.stdout
        with tempfile.NamedTemporaryFile("r", suffix=".log", errors="replace") as log:
            asked = {
                "script": script,
                "flags": flags,
                "processes": processes,
                "environment": environment,
                "log": log.name,
                "limit": limit,
            }
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline()
            assert answer, "the server that forks scripts has died"
            return int(json.loads(answer)), log.read()

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
        code = fork_and_wait(functools.partial(start, asked), Path(asked["log"]), asked["processes"], asked["limit"])
        answers.write(f"{code}\n")
        answers.flush()


def count_cores_once() -> None:
    """DeepSpeed starts `numactl` to count CPUs as devices, 180 times in ten steps of ZeRO-3."""
    from deepspeed.utils import numa

    numa.get_numa_cores = functools.cache(numa.get_numa_cores)


def start(asked: dict[str, Any]) -> None:
    """Run the script as Python's command line does."""
    os.environ.update(asked["environment"])
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.argv = [asked["script"], *asked["flags"]]
    sys.path[0] = str((ROOT / asked["script"]).parent)
    runpy.run_path(str(ROOT / asked["script"]), run_name="__main__")


if __name__ == "__main__":
    serve()
