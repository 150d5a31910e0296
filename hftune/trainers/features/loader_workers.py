"""The worker processes of the training DataLoader: their errors and their signals."""

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
    """Workers outlive signals to their parent, and their errors read as if the parent had raised them."""

    def on_train_loader(self, run: Run, loader: DataLoader[Any]) -> None:
        """Have workers set their signal handlers first."""
        inner: Any = getattr(loader, "base_dataloader", None)  # accelerate wraps the Trainer's
        # Whichever of the two makes the iterator starts the workers.
        for each in (loader, inner):
            if each is not None and each.num_workers:
                each.worker_init_fn = partial(start_worker, each.worker_init_fn)

    @contextmanager
    def fetching(self, run: Run) -> Iterator[None]:
        """Say a worker's error without its traceback."""
        try:
            yield
        except UserError as error:
            raise without_traceback(error) from error


def start_worker(given: Callable[[int], None] | None, number: int) -> None:
    """What a worker does first; torch has set its own handlers by then."""
    interrupts.keep_working()
    if given is not None:
        given(number)


def without_traceback(error: UserError) -> UserError:
    """An error of a DataLoader worker, which torch rebuilds from the text of its traceback, without the traceback."""
    name = f"{type(error).__module__}.{type(error).__qualname__}: "
    # torch writes the traceback into the message, and raises the class of the error with that as its only argument.
    if not error.cause.startswith("Caught ") or name not in error.cause:
        return error
    return type(error)(error.cause.rpartition(name)[2].rstrip())
