"""run_sft.py in which the last rank comes to harm before the fifth step: HARM says how. Not a test: see
test_watchdog.py and test_two_hosts.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import run_pt
import run_sft
from hftune.distributed import ranks
from hftune.errors import run_script
from hftune.trainers.stage_trainer import StageTrainer
from hftune.visible import say

original = StageTrainer.training_step
STEP = 4


def nothing_for_an_hour() -> None:
    """As a file system that hangs would."""
    time.sleep(3600)


HARMS = {
    "sleep": nothing_for_an_hour,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": lambda: {}["no such key"],
    "stop": lambda: os.kill(os.getpid(), signal.SIGTERM),
}


def harmed(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The training step, after the harm."""
    last = ranks.rank() == ranks.world_size() - 1
    if last and self.state.global_step == STEP and os.environ.get("HARM"):
        say(f"HARM {time.time()}", flush=True)
        HARMS[os.environ.pop("HARM")]()
    return original(self, *args, **kwargs)


if __name__ == "__main__":
    StageTrainer.training_step = harmed  # type: ignore[method-assign]
    run_script(run_pt.main if os.environ.get("STAGE") == "pt" else run_sft.main)
