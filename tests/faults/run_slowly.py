"""The script that STAGE names, whose steps, evaluations and saves last as long as SLOW says, in seconds.

Not a test: see test_interrupts.py.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from hftune.errors import run_script


def main() -> None:
    """The script's own main, slowed down."""
    from hftune.trainers.features.checkpoints import Checkpoints
    from hftune.trainers.features.totals import Totals
    from hftune.trainers.reward import ScoredTrainer
    from hftune.trainers.stage_trainer import StageTrainer
    from hftune.visible import say

    slow = dict(part.split("=") for part in os.environ.get("SLOW", "").split(",") if part)

    def slowed(owner: type, name: str, what: str) -> None:
        original = getattr(owner, name)

        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            say(f"NOW {what}", flush=True)
            for _ in range(round(100 * float(slow.get(what, 0)))):
                time.sleep(0.01)
            return original(self, *args, **kwargs)

        setattr(owner, name, wrapper)

    slowed(StageTrainer, "training_step", "step")
    slowed(StageTrainer, "evaluate", "evaluation")
    slowed(ScoredTrainer, "_score_training", "scoring")
    slowed(Checkpoints, "publish", "save")
    slowed(Totals, "restore", "begin")
    importlib.import_module(f"run_{os.environ['STAGE']}").main()


if __name__ == "__main__":
    run_script(main)
