"""Run a script again and again, killed each time at a random moment, until it has been killed often enough.

python tests/faults/kill_often.py KILLS SEED PROCESSES FOLDER run_sft.py ...

Libraries are imported once; each run is a fork a rank. FOLDER/unharmed is run first, then FOLDER/harmed. A third of
the kills come while a run loads, a third while it trains, a third while it saves, at random; every rank is killed, or
one of them. Prints a JSON line a run: what it was doing, in which step the newest whole checkpoint is, what else lies
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import forks

LOADING, TRAINING, SAVING = b"loading ", b"training", b"saving  "
GRACE_SECONDS = 1.0
doing = mmap.mmap(-1, len(LOADING))
"""What rank 0 of the run is doing, shared with it."""


def main(kills: int, seed: int, processes: int, folder: Path, script: str, flags: list[str]) -> None:
    """Let one run finish, kill `kills` others, then let one finish."""
    forks.import_everything()
    from hftune.checkpoints.resume import newest_whole, steps_done

    unharmed, output = folder / "unharmed", folder / "harmed"
    seen = run_once(script, [*flags, "--output_dir", str(unharmed)], processes, None, folder / "log")
    argv = [*flags, "--output_dir", str(output)]
    chance = random.Random(seed)
    for number in range(kills + 1):
        plan = None
        if number < kills:
            state = chance.choice([LOADING, TRAINING, SAVING])
            one = processes > 1 and chance.random() < 0.5
            victims = [chance.randrange(processes)] if one else list(range(processes))
            plan = Plan(state, chance.randint(1, 3), chance.uniform(0.0, seen.seconds[state]), victims)
        result = run_once(script, argv, processes, plan, folder / "log")
        found = newest_whole(output)
        report = {
            "killed": plan is not None and result.killed is not None,
            "code": result.code,
            "doing": result.killed,
            "victims": plan.victims if plan else [],
            "step": steps_done(found.folder)[0] if found.folder else 0,
            "not_whole": [folder.name for folder, _ in found.skipped],
        }
        print("RUN " + json.dumps(report), flush=True)


@dataclass
class Plan:
    """When to kill whom: so long after the `times`-th time that rank 0 begins to do something."""

    state: bytes
    times: int
    seconds: float
    victims: list[int]


@dataclass
class Seen:
    """What became of a run: what it was doing when it was killed, and how long it does each thing at a time."""

    killed: str | None
    code: int
    seconds: dict[bytes, float]


def run_once(script: str, argv: list[str], processes: int, plan: Plan | None, log: Path) -> Seen:
    """Run the script in so many processes, and kill it as planned."""
    port = forks.free_port()
    doing[:] = LOADING
    children = [forks.fork(lambda: work(script, argv), log, rank, processes, port) for rank in range(processes)]
    running, codes, killed, killed_at = set(children), {}, None, 0.0
    state, began, times = LOADING, time.monotonic(), dict.fromkeys((LOADING, TRAINING, SAVING), 0)
    since, times[LOADING], spent = began, 1, dict.fromkeys(times, 0.0)
    while running:
        for child in list(running):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                running.discard(child)
                codes[child] = os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if doing[:] != state:
            spent[state] += now - since
            state, since = doing[:], now
            times[state] += 1
        if plan and plan.state == LOADING:
            due = now - began >= plan.seconds  # whatever it has come to by then
        else:
            due = plan is not None and state == plan.state and times[state] >= plan.times
            due = due and plan is not None and now - since >= plan.seconds
        if plan and due and killed is None and len(running) == processes:
            killed, killed_at = doing[:].decode().strip(), now
            for rank in plan.victims:
                os.kill(children[rank], signal.SIGKILL)
        # As a launcher does: who is left over is ended as well.
        if killed and now - killed_at > GRACE_SECONDS:
            for child in running:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.0005)
    code = next((code for code in codes.values() if code), 0)
    return Seen(killed, code, {each: spent[each] / max(1, times[each]) for each in spent})


def work(script: str, argv: list[str]) -> None:
    """The script's main, saying what it is doing."""
    from hftune.errors import run_script
    from hftune.trainers.preemption import PreemptionCallback
    from hftune.trainers.stage_trainer import StageTrainer

    begin, save = PreemptionCallback.on_train_begin, StageTrainer._save_checkpoint

    def says_training(self: Any, *args: Any, **kwargs: Any) -> None:
        say(TRAINING)
        begin(self, *args, **kwargs)

    def says_saving(self: Any, *args: Any, **kwargs: Any) -> None:
        say(SAVING)
        save(self, *args, **kwargs)
        say(TRAINING)

    PreemptionCallback.on_train_begin = says_training  # type: ignore[method-assign]
    StageTrainer._save_checkpoint = says_saving  # type: ignore[method-assign]
    sys.argv = [script, *argv]
    run_script(importlib.import_module(script.removesuffix(".py")).main)


def say(what: bytes) -> None:
    """Rank 0 speaks for all."""
    if os.environ.get("RANK", "0") == "0":
        doing[:] = what


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5], sys.argv[6:])
