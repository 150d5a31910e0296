"""Run a script again and again, killed each time at a random moment, until it has been killed often enough.

python tests/faults/kill_often.py KILLS SEED PROCESSES FOLDER run_sft.py ...

Libraries are imported once; each run is a fork a rank. FOLDER/unharmed is run first, then FOLDER/harmed. Half of the
kills come while a run loads, half of them after it has begun to train, at random; every rank is killed, or one of them
at random. Prints a JSON line a run: what it was doing, in which step the newest whole checkpoint is, and what else lies
there. The last run is left alone. Not a test: see test_kills.py.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import forks

LOADING, TRAINING, SAVING = b"loading ", b"training", b"saving  "
AFTER_SECONDS = 1.0
GRACE_SECONDS = 1.0
doing = mmap.mmap(-1, len(LOADING))
"""What rank 0 of the run is doing, shared with it."""


def main(kills: int, seed: int, processes: int, folder: Path, script: str, flags: list[str]) -> None:
    """Let one run finish, kill `kills` others, then let one finish."""
    forks.import_everything()
    from hftune.checkpoints.resume import newest_whole, steps_done

    unharmed, output = folder / "unharmed", folder / "harmed"
    run_once(script, [*flags, "--output_dir", str(unharmed)], processes, None, [], folder / "log")
    argv = [*flags, "--output_dir", str(output)]
    chance, loading = random.Random(seed), None
    for number in range(kills + 1):
        plan = None
        if number < kills:
            # The first one shows how long loading takes on this machine today.
            early = loading is not None and chance.random() < 0.5
            one = processes > 1 and chance.random() < 0.5
            plan = (early, chance.uniform(0.0, (loading or 0.0) if early else AFTER_SECONDS))
            victims = [chance.randrange(processes)] if one else list(range(processes))
        phase, code, took = run_once(script, argv, processes, plan, victims if plan else [], folder / "log")
        loading = took if loading is None else loading
        found = newest_whole(output)
        report = {
            "killed": plan is not None and code != 0,
            "code": code,
            "doing": phase,
            "victims": victims if plan else [],
            "step": steps_done(found.folder)[0] if found.folder else 0,
            "not_whole": [folder.name for folder, _ in found.skipped],
        }
        print("RUN " + json.dumps(report), flush=True)


def run_once(
    script: str, argv: list[str], processes: int, plan: tuple[bool, float] | None, victims: list[int], log: Path
) -> tuple[str, int, float]:
    """What a run was doing when it was killed, rank 0's exit code, and the seconds until it trained."""
    port = forks.free_port()
    doing[:] = LOADING
    children = [forks.fork(lambda: work(script, argv), log, rank, processes, port) for rank in range(processes)]
    began, trains_from = time.monotonic(), None
    running, codes, phase = set(children), {}, ""
    while running:
        for child in list(running):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                running.discard(child)
                codes[child] = os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if trains_from is None and doing[:] != LOADING:
            trains_from = now
        since = began if plan and plan[0] else trains_from
        if plan and not phase and since is not None and now - since > plan[1] and len(running) == processes:
            phase = doing[:].decode().strip()
            killed_at = now
            for rank in victims:
                os.kill(children[rank], signal.SIGKILL)
        # As a launcher does: who is left over is ended as well.
        if phase and now - killed_at > GRACE_SECONDS:
            for child in running:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    code = next((code for code in codes.values() if code), 0)
    return phase, code, (trains_from or time.monotonic()) - began


def work(script: str, argv: list[str]) -> None:
    """The script's main, saying what it is doing."""
    from hftune.errors import run_script
    from hftune.trainers.checkpoints import CheckpointMixin
    from hftune.trainers.preemption import PreemptionCallback

    begin, save = PreemptionCallback.on_train_begin, CheckpointMixin._save_checkpoint

    def says_training(self: Any, *args: Any, **kwargs: Any) -> None:
        say(TRAINING)
        begin(self, *args, **kwargs)

    def says_saving(self: Any, *args: Any, **kwargs: Any) -> None:
        say(SAVING)
        save(self, *args, **kwargs)
        say(TRAINING)

    PreemptionCallback.on_train_begin = says_training  # type: ignore[method-assign]
    CheckpointMixin._save_checkpoint = says_saving  # type: ignore[method-assign]
    sys.argv = [script, *argv]
    run_script(importlib.import_module(script.removesuffix(".py")).main)


def say(what: bytes) -> None:
    """Rank 0 speaks for all."""
    if os.environ.get("RANK", "0") == "0":
        doing[:] = what


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5], sys.argv[6:])
