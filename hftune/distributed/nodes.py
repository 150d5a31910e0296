"""Machines: which ones the processes run on, what they share, errors that all must raise, waiting for work of one."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hftune.distributed import phases, ranks
from hftune.errors import ArgumentError, UserError, raise_together, sent, to_send


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def spans_machines() -> bool:
    """Whether the processes are on more than one machine; all ranks must ask.

    By names, and by who is first on a machine: machines of a cluster may all be called localhost.
    """
    firsts = ranks.gathered_objects((host(), ranks.local_rank() == 0))
    # A machine has one process with local rank 0: two of them are two machines, whatever their names.
    return len({name for name, _ in firsts}) > 1 or sum(first for _, first in firsts) > 1


def is_shared(folder: Path) -> bool:
    """Whether every process sees what rank 0 writes into a folder; all ranks must ask.

    The folder is made where it is missing, and nothing is left in it. The name is new each time: network file systems
    remember names that they have not found.
    """
    name = f".hftune-{uuid.uuid4().hex}" if ranks.is_main() else ""
    # Ranks look only after rank 0 has written: gathering the name below waits for it.
    if ranks.is_main():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    probe = folder / ranks.gathered_objects(name)[0]
    # Also a barrier: rank 0 removes the file only after everybody has looked.
    seen = ranks.all_agree(probe.exists())
    if ranks.is_main():
        with suppress(FileNotFoundError):
            probe.unlink()
    return seen


def raise_on_all_ranks(problems: Iterable[UserError]) -> None:
    """Raise all problems in one message, on all ranks if there are any on one; all must call it.

    What is wrong on some machines only is said with their names, by every rank: rank 0's message is read first.
    """
    own = list(problems)
    everyone = ranks.gathered_objects((host(), [to_send(found) for found in own]))
    where: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name, said in everyone:
        for problem in said:
            where.setdefault(problem, []).append(name)
    # A problem that all have is raised in its own class; what some have is the same text for everybody.
    try:
        if all(len(found) == len(everyone) for found in where.values()):
            raise_together(own)
        raise_together(
            found if len(names) == len(everyone) else _on_machines(found, names)
            for problem, names in where.items()
            for found in [sent(*problem)]
        )
    except UserError as error:
        error.on_all_ranks = True
        raise


def _on_machines(problem: ArgumentError, names: list[str]) -> ArgumentError:
    on = ", ".join(dict.fromkeys(names))
    return sent(f"on {on}: {problem.cause}", problem.place, problem.fix)


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
    raise_on_all_ranks([problem] if isinstance(problem, UserError) else [])
    # Processes of a machine are neighbours by rank, the first of them first.
    found = ranks.gathered_objects(work.result() if work else None)[ranks.rank() - ranks.local_rank()]
    return found  # type: ignore[return-value]  # that one had work
