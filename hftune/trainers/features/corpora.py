"""Training on blocks of tokenised folders, or on a stream: where it stands goes into every checkpoint.

And comes out of it in any world, without reading what was trained before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from hftune.checkpoints.integrity import TRAINER_STATE
from hftune.constants import ORIGIN
from hftune.data.blocks import BlockDataset, BlockSampler
from hftune.data.streaming import Progress
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.logging import get_logger, notice
from hftune.opening.model_files import read_checked
from hftune.trainers.features.feature import Feature, state_errors
from hftune.trainers.features.run import Run

LOADER_STATE_NAME = "loader_state.json"
"""The file of a checkpoint that says which documents have been trained; the same for all ranks."""


def refuse_state(checkpoint: str) -> None:
    """Refuse a checkpoint that has such a file, for a run on other data."""
    if (Path(checkpoint) / LOADER_STATE_NAME).is_file():
        raise ArgumentError(
            f"{checkpoint} was made on tokenised or streamed data, and other data would be skipped by count",
            place="--resume_from_checkpoint",
            fix="Give the data that it was made with: --tokenized_dir, or --streaming.",
        )


def read_state(checkpoint: str | Path) -> tuple[dict[str, Any], int]:
    """The state of the data in a checkpoint, and the steps made by then.

    Raises:
        ArgumentError: The checkpoint has none: it was made on other data, or is damaged.
    """
    folder = Path(checkpoint)
    missing = [name for name in (LOADER_STATE_NAME, TRAINER_STATE) if not (folder / name).is_file()]
    if missing:
        raise ArgumentError(
            f"{checkpoint} has no {' and no '.join(missing)}, so it is not known which documents it was trained on",
            place="--resume_from_checkpoint",
            fix="Go on with the data that it was made with (without --tokenized_dir or --streaming), or give the "
            "folder as --model_name_or_path to start anew from its weights.",
        )
    state = read_checked(folder / LOADER_STATE_NAME)
    steps = read_checked(folder / TRAINER_STATE)["global_step"]
    return state, int(steps)


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
        elif checkpoint:
            refuse_state(checkpoint)

    def sampler(self, dataset: Any) -> BlockSampler | None:
        """The order of the blocks that are left; None for other data."""
        return BlockSampler(len(dataset), self._origin) if isinstance(dataset, BlockDataset) else None

    def save_files(self, run: Run, folder: Path) -> None:
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
        with state_errors(Path(checkpoint) / LOADER_STATE_NAME):
            data.check(state)
        # Chosen so that `trained` gives the blocks of the checkpoint now, and counts on in steps of today's size.
        self._origin = state["blocks"] - steps * step_size
        if self._origin != 0:
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


class Streams(Feature):
    """Training on a `StreamingDataset`, which writes down what is trained.

    The stream is shared between ranks and workers by the data set itself, so accelerate does not get to see the
    DataLoader: it would read on one process for all, or read everything on each. On resuming, nothing is skipped by
    the Trainer; the stream leaves out what was trained.
    """

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """Tell the stream where it stands."""
        if checkpoint:
            state, steps = read_state(checkpoint)
            with state_errors(Path(checkpoint) / LOADER_STATE_NAME):
                run.train_dataset.resume(state)
            run.args.ignore_data_skip = True
            get_logger().info("data: resuming after %d steps and %s trained tokens", steps, state["totals"]["tokens"])

    def say_dropped(self, run: Run) -> None:
        """Say what the stream had to drop."""
        dropped = run.train_dataset.totals(progress_of(run))["dropped"]
        if dropped:
            notice(f"{dropped} records of the stream gave no example and were dropped")

    def make_loader(self, run: Run) -> DataLoader[Any]:
        """Batches of a stream also carry the origins of their examples."""
        args = run.args
        # Workers tokenise; batches are cut here, so that they are the same with any number of workers.
        run.train_dataset.loading = {
            "num_workers": args.dataloader_num_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }
        return DataLoader(
            run.train_dataset,
            batch_size=run._train_batch_size,
            collate_fn=WithOrigins(run.data_collator),
            pin_memory=args.dataloader_pin_memory and not args.use_cpu,
        )

    def save_files(self, run: Run, folder: Path) -> None:
        """How far the stream has been trained; each rank knows its own part."""
        everyone = progress_of(run)
        if ranks.is_main():
            text = json.dumps(run.train_dataset.state(everyone), indent=1)
            (folder / LOADER_STATE_NAME).write_text(text, encoding="utf-8")

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """The length of a stream is not known: its "epoch" is the share of `--max_steps`."""
        run.state.epoch = run.state.global_step / run.state.max_steps


def progress_of(run: Run) -> list[Progress]:
    """How far every rank of a stream is, in their order; every rank must ask."""
    own: Progress = run.train_dataset.progress
    everyone = ranks.gathered_objects(own)
    # Processes of a group have noted the same.
    return everyone[:: run.args.mesh.sharing]


class WithOrigins:
    """A collator that adds the origins of the examples to the batch."""

    def __init__(self, collator: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """The collator's batch, and under ORIGIN a list of `Origin`."""
        origins = [feature.pop(ORIGIN) for feature in features]
        return {**self.collator(features), ORIGIN: origins}
