"""The file of a checkpoint that says which documents of tokenised folders or streams have been trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME

from hftune.errors import ArgumentError, ManifestError, shown
from hftune.opening.model_files import read_checked

LOADER_STATE_NAME = "loader_state.json"
"""The same for all ranks."""


def refuse_state(checkpoint: str) -> None:
    """Refuse a checkpoint that has such a file, for a run on other data."""
    if (Path(checkpoint) / LOADER_STATE_NAME).is_file():
        raise ArgumentError(
            f"{checkpoint} was made on tokenised or streamed data, and other data would be skipped by count",
            place="--resume_from_checkpoint",
            fix="Give the data that it was made with: --tokenized_dir, or --streaming.",
        )


@contextmanager
def state_errors(checkpoint: str | Path) -> Iterator[None]:
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
