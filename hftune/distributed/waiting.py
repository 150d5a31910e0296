"""Waiting for the work of one process: no collective lasts, and who waits is not taken for hanging."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from hftune.distributed import nodes, phases, ranks
from hftune.errors import UserError

T = TypeVar("T")

_LOOK = 1.0
"""Seconds between two looks of the processes at each other."""


def wait_for_all(work: Future[Any] | None, moves: Callable[[], int] = lambda: 0) -> None:
    """Until the work of every process is done, of those that have any; all ranks must call it.

    Args:
        work: Of this process, in a thread.
        moves: Counts what it has done so far: as long as that grows anywhere, no process counts as hanging.
    """
    before = None
    while True:
        wait([work] if work else [], timeout=_LOOK)
        everyone = ranks.gathered_objects((work is None or work.done(), moves()))
        if all(done for done, _ in everyone):
            return
        if everyone != before:
            phases.keep_alive()
        before = everyone


def once_a_machine(ask: Callable[[], T]) -> T:
    """What the first process of this machine finds, for all of its processes; all ranks must call it.

    Raises:
        UserError: Of `ask`, on all ranks.
    """
    if not ranks.is_distributed():
        return ask()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(ask) if ranks.local_rank() == 0 else None
        wait_for_all(work)
    problem = work.exception() if work else None
    nodes.raise_on_all_ranks([problem] if isinstance(problem, UserError) else [])
    # Processes of a machine are neighbours by rank, the first of them first.
    found = ranks.gathered_objects(work.result() if work else None)[ranks.rank() - ranks.local_rank()]
    return found  # type: ignore[return-value]  # that one had work
