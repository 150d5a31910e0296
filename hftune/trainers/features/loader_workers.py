"""The worker processes of the training DataLoader: what they say and which signals they mind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from hftune import interrupts
from hftune.errors import UserError
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class LoaderWorkers(Feature):
    """Workers do not die of what their parent is told, and what they say of the data reads as if there were none."""

    def on_train_loader(self, run: Run, loader: DataLoader) -> None:
        """Have workers begin with their signals."""
        inner: Any = getattr(loader, "base_dataloader", None)  # accelerate wraps the Trainer's
        for each in (loader, inner):
            if each is not None and each.num_workers:
                each.worker_init_fn = partial(begin_worker, each.worker_init_fn)

    @contextmanager
    def fetching(self, run: Run) -> Iterator[None]:
        """Say a worker's error without its traceback."""
        try:
            yield
        except UserError as error:
            raise without_traceback(error) from error


def begin_worker(given: Callable[[int], None] | None, number: int) -> None:
    """What a worker does first; torch has set its own handlers by then."""
    interrupts.keep_working()
    if given is not None:
        given(number)


def without_traceback(error: UserError) -> UserError:
    """An error of a DataLoader worker, which torch rebuilds from the text of its traceback, without the traceback."""
    name = f"{type(error).__module__}.{type(error).__qualname__}: "
    if not error.cause.startswith("Caught ") or name not in error.cause:
        return error
    return type(error)(error.cause.rsplit(name, 1)[1].rstrip())
