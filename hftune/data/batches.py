"""Run a function over rows in batches, in several processes where that pays."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from hftune.data.sources import Row

T = TypeVar("T")

BATCH = 256
"""Rows a call: enough for the tokenizer's own threads, few enough to keep memory flat."""

WORTH_WORKERS = 2000
"""Below this number of rows, starting processes costs more than it saves."""


def in_batches(function: Callable[[list[Row]], list[T]], rows: list[Row], workers: int = 1) -> list[T]:
    """`function` over batches of rows, its results joined in the order of the rows.

    Args:
        function: Takes a list of rows, returns a list; picklable if `workers` is above 1.
        workers: Processes. Ignored for fewer than `WORTH_WORKERS` rows, and where the system cannot fork.
    """
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    # A spawned process would run the user's script again up to its main guard; only forking is safe to do unasked.
    if workers <= 1 or len(rows) < WORTH_WORKERS or "fork" not in multiprocessing.get_all_start_methods():
        return [result for batch in batches for result in function(batch)]
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(workers, len(batches)), mp_context=context, initializer=_one_thread) as pool:
        return [result for results in pool.map(function, batches) for result in results]


def _one_thread() -> None:
    """Each worker is one process on one core; the tokenizer's threads do not survive a fork anyway."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
