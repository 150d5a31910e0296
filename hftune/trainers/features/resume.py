"""Resuming from a checkpoint of any world: DeepSpeed loads its own, others are resharded."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from hftune.checkpoints.integrity import engine_folder
from hftune.compat.patches import Loader, checkpoint_loader
from hftune.distributed import ranks
from hftune.logging import notice
from hftune.opening.torch_file import checked_loading
from hftune.trainers.features.run import Run
from hftune.trainers.resharding import is_of_this_world, reshard, scheduler_state, written_by


def any_world(run: Run) -> AbstractContextManager[None]:
    """In the block the Trainer's one call of DeepSpeed's loader takes those of other processes and ZeRO stages."""

    def load_anywhere(load: Loader, engine: Any, checkpoint: str, options: dict[str, Any]) -> None:
        if is_of_this_world(engine, checkpoint):
            with checked_loading(checkpoint):  # DeepSpeed would run whatever a file's pickle says
                load(engine, checkpoint, **options)
        else:
            reshard(run, checkpoint)

    return checkpoint_loader(load_anywhere)


def load_optimizer(run: Run, checkpoint: str) -> bool:
    """Reshard what DeepSpeed wrote for a run without DeepSpeed; whether that is done."""
    if run.is_deepspeed_enabled or engine_folder(checkpoint) is None:
        return False
    reshard(run, checkpoint)
    run.lr_scheduler.load_state_dict(scheduler_state(checkpoint))
    return True


def say_random_states(checkpoint: str) -> None:
    """Say that processes which the checkpoint does not know keep the state of the seed."""
    known = written_by(checkpoint)
    if known != ranks.world_size():
        notice(
            f"{checkpoint} has random states of {known} process(es): dropout and other noise are drawn anew; the "
            "order of the data does not depend on them"
        )
