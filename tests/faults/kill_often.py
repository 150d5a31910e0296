"""Run a script again and again, killed each time at a random moment, until it has been killed often enough.

python tests/faults/kill_often.py KILLS SEED SECONDS run_sft.py --output_dir OUT ...

Libraries are imported once; each run is a fork. Prints a JSON line a run: when it was killed, in which step the newest
whole checkpoint is, and what else lies there. The last run is left alone. Not a test: see test_kills.py.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from hftune.arguments import parse_arguments  # noqa: F401  imported before the fork
from hftune.checkpoints.resume import newest_whole, steps_done
from hftune.errors import run_script

for module in ("hftune.stage", "hftune.data.tokenization", "hftune.trainers.sft", "hftune.models.loading"):
    importlib.import_module(module)


def main(kills: int, seed: int, seconds: float, script: str, argv: list[str]) -> None:
    """Kill `kills` runs at up to `seconds` after they began, then let one finish."""
    output = Path(argv[argv.index("--output_dir") + 1])
    moments = random.Random(seed)
    for number in range(kills + 1):
        wait = moments.uniform(0.0, seconds) if number < kills else None
        code = run_once(script, argv, wait)
        found = newest_whole(output)
        report = {
            "killed": code == -signal.SIGKILL,
            "code": code,
            "after": wait,
            "step": steps_done(found.folder)[0] if found.folder else 0,
            "not_whole": [folder.name for folder, _ in found.skipped],
        }
        print("RUN " + json.dumps(report), flush=True)


def run_once(script: str, argv: list[str], wait: float | None) -> int:
    """Fork, run the script's main, and kill it after `wait` seconds; returns its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        sys.argv = [script, *argv]
        run_script(importlib.import_module(script.removesuffix(".py")).main)
        sys.stdout.flush()
        os._exit(0)
    began = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if wait is not None and time.monotonic() - began > wait:
            os.kill(child, signal.SIGKILL)
            wait = None
        time.sleep(0.001)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5:])
