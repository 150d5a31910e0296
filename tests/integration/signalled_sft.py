"""run_sft.py in which the last rank is told to stop at step 4, as a scheduler would. Not a test: see
test_checkpoints.py."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

sys.path.insert(0, str(Path(__file__).parents[2]))

import run_sft
from hftune.distributed import ranks
from hftune.errors import run_script
from hftune.trainers.stage_trainer import StageTrainer

original = StageTrainer.training_step


class Signal(TrainerCallback):
    """SIGUSR1 to this very process."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Once, before the fifth step ends."""
        if state.global_step == 4 and ranks.rank() == ranks.world_size() - 1 and os.environ.get("TELL_TO_STOP") != "no":
            os.environ["TELL_TO_STOP"] = "no"
            os.kill(os.getpid(), signal.SIGUSR1)


def with_signal(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The training step, with the callback in place before the first one."""
    if not getattr(self, "_tells", False):
        self._tells = True
        self.add_callback(Signal())
    return original(self, *args, **kwargs)


if __name__ == "__main__":
    if "--resume_from_checkpoint" not in sys.argv:
        StageTrainer.training_step = with_signal  # type: ignore[method-assign]
    run_script(run_sft.main)
