"""A Trainer on a `BlockDataset`: where it stands goes into every checkpoint, and comes out of it in any world."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.data import Sampler
from transformers.trainer import TRAINER_STATE_NAME

from hftune.data.corpus.loader import BlockDataset, InOrder
from hftune.data.corpus.streaming import StreamingDataset
from hftune.distributed import ranks
from hftune.errors import ArgumentError, ManifestError, shown
from hftune.logging import get_logger, notice
from hftune.opening.model_files import read_checked

LOADER_STATE_NAME = "loader_state.json"
"""The file of a checkpoint that says which documents have been trained. The same for all ranks."""


class BlocksMixin:
    """Put before a `Trainer` subclass. Does nothing unless the training data are a `BlockDataset`.

    The Trainer's own machinery deals the blocks out: its batch sampler gives each rank its batches of a step, and on
    resuming it passes over the numbers (not the data) of the blocks that an epoch has behind it. What is added: whole
    steps at the end of an epoch, the state in the checkpoint, and the origin of the numbers where a checkpoint was
    made with another batch size, so that the next block is the one after the last that was trained.
    """

    _origin = 0
    """The block that step 0 would have begun at, had all steps been of today's size."""

    def train(self: Any, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As `Trainer.train`; a folder to resume from is read before the number of steps is fixed."""
        if isinstance(self.train_dataset, BlockDataset):
            self._begin_blocks(resume_from_checkpoint)
        elif resume_from_checkpoint and not isinstance(self.train_dataset, StreamingDataset):
            _refuse_state(str(resume_from_checkpoint))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)  # type: ignore[misc]

    def blocks_trained(self: Any) -> int:
        """Blocks of the run that have been trained by now, over all ranks and interruptions."""
        return self._origin + self.state.global_step * self.get_total_train_batch_size(self.args)

    def count_trained_tokens(self: Any) -> int | None:
        """Tokens with a loss so far: all but the first of each document and of each block. None for other data.

        Too low by the blocks that happen to begin with a document, about one in the mean length of a document.
        """
        data = self.train_dataset
        if not isinstance(data, BlockDataset):
            return None
        blocks = self.blocks_trained()
        epochs = data.epochs(blocks)
        documents = sum(
            len(source.documents) * epochs[name] for name, source in zip(data.names, data.sources, strict=True)
        )
        return max(0, round(sum(data.positions(blocks).values()) - documents - blocks))

    def _begin_blocks(self: Any, checkpoint: str | bool | None) -> None:
        data, step_size = self.train_dataset, self.get_total_train_batch_size(self.args)
        data.fill_steps(step_size)
        if self.args.ignore_data_skip:
            notice("--ignore_data_skip has no effect: the position in tokenised data is found without reading them")
            self.args.ignore_data_skip = False
        if not checkpoint:
            return
        assert isinstance(checkpoint, str), "finish_run names the folder"
        state, steps = read_state(checkpoint)
        with telling_faults(checkpoint):
            changes = list(data.resume(state))
        for change in changes:
            notice(f"going on with changed data: {change}")
        self._origin = state["blocks"] - steps * step_size
        if self._origin != 0 or state["block_size"] != data.block_size:
            self._fix_steps(state, steps, step_size)
        epochs = ", ".join(f"{name} {epoch:.3f}" for name, epoch in data.epochs(state["blocks"]).items())
        get_logger().info("data: block %s of the run is next; epochs so far: %s", f"{state['blocks']:,}", epochs)

    def _fix_steps(self: Any, state: dict[str, Any], steps: int, step_size: int) -> None:
        """Steps of another size than before: as many as the tokens that are left to `--num_train_epochs` need."""
        if self.args.max_steps > 0:
            return
        data = self.train_dataset
        trained = sum(source["position"] for source in state["sources"].values())
        wanted = self.args.num_train_epochs * data.epoch_blocks * data.block_size
        left = math.ceil((wanted - trained) / (step_size * data.block_size))
        if left <= 0:
            # The Trainer would make a step before it looks at their number.
            raise ArgumentError(
                f"{trained:,} tokens were trained by the checkpoint, which are the epochs asked for",
                place=f"--num_train_epochs {self.args.num_train_epochs:g}",
                fix="Ask for more, or leave the batch size as it was.",
            )
        self.args.max_steps = steps + left
        notice(
            f"a step is now {step_size} blocks of {data.block_size} tokens; {steps} steps were made before, and {left} "
            f"are left to {self.args.num_train_epochs:g} epoch(s)"
        )

    def _get_train_sampler(self: Any, train_dataset: Any = None) -> Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if isinstance(dataset, BlockDataset):
            return InOrder(len(dataset), self._origin)
        return super()._get_train_sampler(train_dataset)  # type: ignore[misc]

    def _save_beside(self: Any, folder: Path) -> None:
        """How far each source has been gone through."""
        super()._save_beside(folder)  # type: ignore[misc]
        if isinstance(self.train_dataset, BlockDataset) and ranks.is_main():
            state = self.train_dataset.state(self.blocks_trained())
            (folder / LOADER_STATE_NAME).write_text(json.dumps(state, indent=1), encoding="utf-8")

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As `Trainer.log`, with how often each source has been gone through beside the training loss."""
        data = self.train_dataset
        if isinstance(data, BlockDataset) and "loss" in logs:
            epochs = data.epochs(self.blocks_trained())
            logs |= {f"data_epoch/{name}": round(epoch, 4) for name, epoch in epochs.items()}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


def _refuse_state(checkpoint: str) -> None:
    if (Path(checkpoint) / LOADER_STATE_NAME).is_file():
        raise ArgumentError(
            f"{checkpoint} was made on tokenised or streamed data, and other data would be skipped by count",
            place="--resume_from_checkpoint",
            fix="Give the data that it was made with: --tokenized_dir, or --streaming.",
        )


@contextmanager
def telling_faults(checkpoint: str | Path) -> Iterator[None]:
    """Around what takes the state of the data apart: other keys and values than it wrote become the one message."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        file = Path(checkpoint) / LOADER_STATE_NAME
        raise ManifestError(
            f"{file} is no state of the data: {type(error).__name__} {shown(error)}",
            place=str(file),
            fix="resume from another checkpoint, or start anew from its weights: --warm_start",
        ) from error


def read_state(checkpoint: str | Path) -> tuple[dict[str, Any], int]:
    """The state of the data in a checkpoint, and the steps made by then.

    Raises:
        ArgumentError: The checkpoint has none: it was made on other data, or is damaged.
    """
    folder = Path(checkpoint)
    missing = [name for name in (LOADER_STATE_NAME, TRAINER_STATE_NAME) if not (folder / name).is_file()]
    if missing:
        raise ArgumentError(
            f"{checkpoint} has no {' and no '.join(missing)}, so it is not known which documents it was trained on",
            place="--resume_from_checkpoint",
            fix="Go on with the data that it was made with (without --tokenized_dir or --streaming), or give the "
            "folder as --model_name_or_path to start anew from its weights.",
        )
    state = read_checked(folder / LOADER_STATE_NAME)
    steps = read_checked(folder / TRAINER_STATE_NAME)["global_step"]
    return state, int(steps)
