"""What RL has in memory between two steps: answers that are still to be trained, and figures that no log has yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device

from hftune.checkpoints.resume import steps_done
from hftune.distributed import ranks
from hftune.logging import notice
from hftune.opening.torch_file import load_torch
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class AnswerRound(Feature):
    """A round: `steps_per_generation` micro batches of answers, trained `num_iterations` times.

    TRL's trainers (1.16) keep both in memory alone: they would draw other answers when they resume within a round, and
    log the means of the steps from there on.
    """

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """Go on in the round that the checkpoint was made in."""
        if checkpoint is None:
            return
        # TRL counts from 0 in each process.
        run._step = steps_done(Path(checkpoint))[0] * run.args.gradient_accumulation_steps
        file = _file(Path(checkpoint))
        saved = load_torch(file) if file.is_file() else {}
        run._metrics["train"].update(saved.get("metrics", {}))
        run.sums.update(saved.get("sums", {}))
        if _round_is_over(run):
            return
        # Every process draws, or none: to generate is a collective.
        if ranks.all_agree(saved.get("shape") == _shape(run)):
            run._buffered_inputs = send_to_device(saved["batches"], run.args.device)
            run.rollout = send_to_device(saved["rollout"], run.args.device)
        elif ranks.is_main():
            notice(
                f"{checkpoint} lies within a round of answers and was made by other processes or batches, or by an "
                "earlier version: new answers are drawn for the rest of the round"
            )

    def save_state(self, run: Run, folder: Path) -> None:
        """This process's answers, where the next step trains some of them, and its figures."""
        saved: dict[str, Any] = {
            "metrics": {name: [*values] for name, values in run._metrics["train"].items() if values},
            "sums": run.sums,
        }
        if not _round_is_over(run):
            saved |= {"shape": _shape(run), "batches": run._buffered_inputs, "rollout": run.rollout}
        torch.save(saved, _file(folder))


def _round_is_over(run: Run) -> bool:
    return run._step % (run.args.steps_per_generation * run.num_iterations) == 0


def _shape(run: Run) -> list[int]:
    """What the answers of a process fit: processes, micro batches of a round, answers in each."""
    return [ranks.world_size(), run.args.steps_per_generation, run.args.per_device_train_batch_size]


def _file(folder: Path) -> Path:
    return folder / f"answers_{ranks.rank()}.pt"
