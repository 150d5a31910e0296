"""Run a function over items in several processes, results in order, with a bounded number of items under way."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from typing import Any, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

_PR_SET_PDEATHSIG = 1

AHEAD = 4
"""Items under way for each worker: enough to keep it busy, few enough to keep memory flat."""

WORTH_WORKERS = 8
"""Below this number of items, starting processes costs more than it saves."""

_function: Callable[[Any], Any] | None = None


def default_workers() -> int:
    """As many as there are cores for this process, at most 16: past that one reader cannot feed them."""
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def map_in_order(function: Callable[[In], Out], items: Iterable[In], workers: int) -> Iterator[Out]:
    """`function` of each item, in the order of the items.

    Args:
        function: Reaches the workers by forking, so it need not be picklable; items and results must be.
        items: Read as they are needed, `AHEAD` items a worker in advance.
        workers: Processes. Few items, and systems that cannot fork, are served in this process.

    Raises:
        Whatever `function` or `items` raise, at the place in the order where it happened.
    """
    source = iter(items)
    first = list(islice(source, WORTH_WORKERS))
    # A spawned process would run the user's script again up to its main guard; only forking is safe to do unasked.
    if workers <= 1 or len(first) < WORTH_WORKERS or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(function, chain(first, source))
        return
    yield from _forked(function, chain(first, source), workers)


def _forked(function: Callable[[In], Out], items: Iterator[In], workers: int) -> Iterator[Out]:
    global _function
    _function = function
    # The tokenizer, its template and what they have remembered reach the workers without being pickled.
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread)
    waiting: deque[Future[Out]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_call, item))
            # Waiting for the oldest keeps results in order, and bounds how many are in memory.
            if len(waiting) >= AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Also where the caller stops early, on the first bad record: what still waits need not be encoded.
        pool.shutdown(cancel_futures=True)
        _function = None


def _call(item: Any) -> Any:
    assert _function is not None, "set before the fork"
    return _function(item)


def _one_thread() -> None:
    """Each worker is one process on one core; the tokenizer's threads do not survive a fork anyway."""
    _end_with_the_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # What the parent has loaded stays, so the collector need not look through it again and again.
    gc.freeze()


def _end_with_the_parent() -> None:
    """Have the system end this process when its parent is killed; it would wait for work for ever."""
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
