"""Training on a `BlockDataset`: where it stands goes into every checkpoint, and comes out of it in any world."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from torch.utils.data import Sampler

from hftune.data.corpus.blocks import BlockDataset, BlockSampler
from hftune.data.corpus.streaming import StreamingDataset
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.logging import get_logger, notice
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.loader_state import LOADER_STATE_NAME, read_state, refuse_state, state_errors
from hftune.trainers.features.run import Run


class Blocks(Feature):
    """Does nothing unless the training data are a `BlockDataset`.

    The Trainer's own machinery gives the blocks to ranks: its batch sampler gives each rank its batches of a step, and
    on resuming it passes over the numbers (not the data) of the blocks that an epoch has behind it. What is added:
    whole steps at the end of an epoch, the state in the checkpoint, and the origin of the numbers where a checkpoint
    was made with another batch size, so that the next block is the one after the last that was trained.
    """

    def __init__(self) -> None:
        self._origin = 0  # the block that step 0 would have begun at, had all steps been of today's size

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """A folder to resume from is read before the number of steps is fixed."""
        if isinstance(run.train_dataset, BlockDataset):
            self._begin(run, checkpoint)
        elif checkpoint and not isinstance(run.train_dataset, StreamingDataset):
            refuse_state(checkpoint)

    def train_sampler(self, run: Run, dataset: Any) -> Sampler[Any] | None:
        """Blocks are mixed by the data set itself."""
        return BlockSampler(len(dataset), self._origin) if isinstance(dataset, BlockDataset) else None

    def save_state(self, run: Run, folder: Path) -> None:
        """How far each source has been gone through."""
        if isinstance(run.train_dataset, BlockDataset) and ranks.is_main():
            state = run.train_dataset.state(self.trained(run))
            (folder / LOADER_STATE_NAME).write_text(json.dumps(state, indent=1), encoding="utf-8")

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """How often each source has been gone through, next to the training loss."""
        data = run.train_dataset
        if isinstance(data, BlockDataset) and "loss" in logs:
            epochs = data.epochs(self.trained(run))
            # Four digits: an epoch of a large source takes many thousands of steps.
            logs |= {f"data_epoch/{name}": round(epoch, 4) for name, epoch in epochs.items()}

    def trained(self, run: Run) -> int:
        """Blocks of the run that have been trained by now, over all ranks and interruptions."""
        return self._origin + run.state.global_step * run.get_total_train_batch_size(run.args)

    def trained_tokens(self, run: Run) -> int | None:
        """Tokens with a loss so far: all but the first of each document and of each block. None for other data.

        Too low by the blocks that happen to begin with a document, about one in the mean length of a document.
        """
        data = run.train_dataset
        if not isinstance(data, BlockDataset):
            return None
        blocks = self.trained(run)
        epochs = data.epochs(blocks)
        # The first token of a document has nothing before it that could predict it.
        documents = sum(
            len(source.documents) * epochs[name] for name, source in zip(data.names, data.sources, strict=True)
        )
        return max(0, round(sum(data.positions(blocks).values()) - documents - blocks))

    def _begin(self, run: Run, checkpoint: str | None) -> None:
        data, step_size = run.train_dataset, run.get_total_train_batch_size(run.args)
        data.round_to_steps(step_size)
        # The position is part of the order of blocks here: nothing is read to be skipped.
        if run.args.ignore_data_skip:
            notice("--ignore_data_skip has no effect: the position in tokenised data is found without reading them")
            run.args.ignore_data_skip = False
        if not checkpoint:
            return
        state, steps = read_state(checkpoint)
        with state_errors(checkpoint):
            changes = list(data.resume(state))
        for change in changes:
            notice(f"resuming with changed data: {change}")
        # Chosen so that `trained` gives the blocks of the checkpoint now, and counts on in steps of today's size.
        self._origin = state["blocks"] - steps * step_size
        if self._origin != 0 or state["block_size"] != data.block_size:
            fix_steps(run, state, steps, step_size)
        epochs = ", ".join(f"{name} {epoch:.3f}" for name, epoch in data.epochs(state["blocks"]).items())
        get_logger().info("data: block %s of the run is next; epochs so far: %s", f"{state['blocks']:,}", epochs)


def fix_steps(run: Run, state: dict[str, Any], steps: int, step_size: int) -> None:
    """Steps of another size than before: as many as the tokens that are left to `--num_train_epochs` need."""
    if run.args.max_steps > 0:
        return
    data = run.train_dataset
    trained = sum(source["position"] for source in state["sources"].values())
    wanted = run.args.num_train_epochs * data.epoch_blocks * data.block_size
    left = math.ceil((wanted - trained) / (step_size * data.block_size))
    if left <= 0:
        # The Trainer would make a step before it looks at their number.
        raise ArgumentError(
            f"{trained:,} tokens were trained by the checkpoint, which are the epochs asked for",
            place=f"--num_train_epochs {run.args.num_train_epochs:g}",
            fix="Ask for more, or leave the batch size as it was.",
        )
    run.args.max_steps = steps + left
    notice(
        f"a step is now {step_size} blocks of {data.block_size} tokens; {steps} steps were made before, and {left} "
        f"are left to {run.args.num_train_epochs:g} epoch(s)"
    )
