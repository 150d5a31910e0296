"""What a run has in memory alone and a resumed one goes on with: one file a process in each checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hftune.distributed import ranks
from hftune.errors import ManifestError, shown
from hftune.logging import notice
from hftune.opening.torch_file import load_torch
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run

PATTERN = "run_state_*.pt"


def write_state(run: Run, folder: Path) -> None:
    """Write what features keep, by the names of their classes; every rank must ask."""
    saved = {type(one).__name__: one.state(run) for one in run.features.having(Feature.state)}
    torch.save(saved, folder / PATTERN.replace("*", str(ranks.rank())))


def load_state(run: Run, checkpoint: str) -> None:
    """Have features take up what they kept; nothing of what the checkpoint lacks, as one of another tool.

    A process that the checkpoint does not know reads the file of another: what is each process's own says whose it is.

    Raises:
        ManifestError: A file holds something else.
    """
    files = sorted(Path(checkpoint).glob(PATTERN))
    own = Path(checkpoint) / PATTERN.replace("*", str(ranks.rank()))
    file = own if own in files else next(iter(files), None)
    if file is None and ranks.is_main():
        notice(f"{checkpoint} has no {PATTERN}: sums over the run, and figures not logged yet, begin here")
    with state_errors(file or own):
        saved: dict[str, Any] = load_torch(file) if file else {}
        for feature in run.features.having(Feature.load_state):
            feature.load_state(run, saved.get(type(feature).__name__, {}))


@contextmanager
def state_errors(file: Path) -> Iterator[None]:
    """Around what takes a saved state apart: other keys and values than were written become the one message."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(
            f"{file} is no state of a run: {type(error).__name__} {shown(error)}",
            place=str(file),
            fix="resume from another checkpoint, or start anew from its weights: --warm_start",
        ) from error
