"""A pipeline's runner and its stages as forks of one process that has imported everything: seconds, not minutes.

python tests/faults/warm_pipeline.py KILLS SEED SHARE UNHARMED.yaml HARMED.yaml

The first pipeline runs to its end. Of the second the runner, or what it has started, is killed at a random moment,
again and again; then it runs to its end, too. A moment is a number of files that the run has made by then, since how
long anything takes depends on what else the machine does. Prints a JSON line for each run. Not a test: see
test_pipeline_kills.py.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from hftune.checkpoints.manifest import is_complete
from hftune.cli import dispatch
from hftune.errors import run_script
from hftune.tools.pipeline.processes import _PR_SET_PDEATHSIG, _prctl
from hftune.tools.pipeline.runner import Runner
from hftune.tools.pipeline.spec import read_spec
from hftune.tools.pipeline.state import damage
from hftune.tools.pipeline.steps import Step, steps_of
from tests.forks import fork, import_everything

MODULES = (
    "hftune.data.encode_pairs",
    "hftune.tools.asking",
    "hftune.merging.merge",
    "hftune.merging.peft_model",
    "hftune.trainers.rewards.loading",
)


class Forked:
    """A script in a fork, as the runner sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal."""
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code

    def ask_to_stop(self) -> None:
        """A checkpoint, then the end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Now."""
        os.kill(self.pid, signal.SIGKILL)


def warm_start(command: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
    """`python run_sft.py ...` or `hftune ask ...` without the imports."""
    runner = os.getpid()

    def work() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # as the supervisor does for a launcher
        if os.getppid() != runner:
            os._exit(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(env)
        if command[0] == "hftune":
            run_script(lambda: dispatch(list(command[1:])))
            return
        script = Path(command[1])
        sys.argv = [script.name, *command[2:]]
        run_script(importlib.import_module(script.stem).main)

    return Forked(fork(work, log, 0, 1, 0))


def start_runner(steps: list[Step], folder: Path) -> int:
    """`hftune pipeline run` in a fork; returns its pid."""

    def work() -> None:
        run_script(lambda: Runner(folder, start=warm_start).run(steps))

    return fork(work, folder.with_name(f"{folder.name}.log"), 0, 1, 0)


def entries(folder: Path) -> set[Path]:
    """All that is in a folder now; what a run removes meanwhile is passed over."""
    return {Path(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files)}


def run_once(steps: list[Step], folder: Path, moments: random.Random, files: float | None) -> dict:
    """One run, killed after up to `files` new ones; what was killed, and what is finished and whole after it."""
    before = entries(folder)
    pid = start_runner(steps, folder)
    victim, made = None, set[Path]()
    # A little later as well: much happens between two files.
    enough, pause = moments.uniform(0.0, files or 0.0), moments.uniform(0.0, 0.1)
    whom = moments.choice(["runner", "stage"])
    while _runs(pid):
        made |= entries(folder) - before
        if files is not None and len(made) >= enough:
            time.sleep(pause)
            victim = _kill(pid, whom)
            break
        time.sleep(0.005)
    _, status = os.waitpid(pid, 0)
    complete = [step.name for step in steps if is_complete(step.folder)]
    return {
        "victim": victim,
        "code": os.waitstatus_to_exitcode(status),
        "files": len(made),
        "complete": complete,
        "damaged": [fault for step in steps if is_complete(step.folder) for fault in damage(step.folder)],
    }


def _runs(pid: int) -> bool:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _kill(pid: int, whom: str) -> str | None:
    """SIGKILL to the runner, or to the script that it has started."""
    if not _runs(pid):
        return None
    below = psutil.Process(pid).children()
    target = below[0] if whom == "stage" and below else psutil.Process(pid)
    target.kill()
    return "runner" if target.pid == pid else "stage"


def main(kills: int, seed: int, share: float, unharmed: Path, harmed: Path) -> None:
    """Run one pipeline to its end; kill the other `kills` times, then let it finish, too.

    Args:
        share: A run is killed at the latest when it has made this share of the files that the unharmed one made.
    """
    import_everything()
    for module in MODULES:
        importlib.import_module(module)
    sys.path.insert(0, os.getcwd())
    moments = random.Random(seed)
    files = _carry_out(unharmed, 0, moments, 0.0)
    _carry_out(harmed, kills, moments, share * files)


def _carry_out(file: Path, kills: int, moments: random.Random, files: float) -> int:
    """Returns how many files the last run made."""
    spec = read_spec(file)
    steps, folder = steps_of(spec), Path(str(spec.output_dir.value))
    for left in range(kills, -1, -1):
        report = run_once(steps, folder, moments, files if left else None)
        print("RUN " + json.dumps({"folder": folder.name, **report}), flush=True)
    return report["files"]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
