"""Which process this is, and how processes wait for each other."""

from __future__ import annotations

import os
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def is_distributed() -> bool:
    """Whether a process group is alive."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Global rank of this process; 0 without a launcher."""
    return dist.get_rank() if is_distributed() else int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Rank among the processes of this machine; 0 without a launcher."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """Number of processes; 1 without a launcher."""
    return dist.get_world_size() if is_distributed() else int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Number of processes on this machine; the world size where the launcher does not say."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))


def is_main() -> bool:
    """Whether this is the one process that writes files and speaks."""
    return rank() == 0


def barrier() -> None:
    """Wait for every process; nothing without a process group."""
    if is_distributed():
        dist.barrier()


def all_agree(fact: bool) -> bool:
    """Whether something is true on every process; all of them must ask."""
    return all(gathered_objects(fact))


def gathered_objects(value: T) -> list[T]:
    """The value of every process, by rank, on every process; for small things."""
    if not is_distributed():
        return [value]
    found: list[T | None] = [None] * world_size()
    dist.all_gather_object(found, value)
    return found  # type: ignore[return-value]
