"""Which process this is, how processes wait for each other, and how they are arranged to share rows and layers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hftune.errors import ArgumentError

T = TypeVar("T")


@dataclass(frozen=True)
class PlannedWorld:
    """Processes that a plan is made for, and where they would train.

    Args:
        processes: All.
        local_processes: Of a machine.
        on_cpu: Not on GPUs.
        bf16: Whether the GPUs compute in bf16.
        major: Of the GPUs' compute capability.
    """

    processes: int
    local_processes: int
    on_cpu: bool = False
    bf16: bool = True
    major: int = 8


_planned_world: PlannedWorld | None = None


def planned_world() -> PlannedWorld | None:
    """The processes that arguments are parsed for where no run follows; None where one does."""
    return _planned_world


@contextmanager
def planning_for(world: PlannedWorld) -> Iterator[None]:
    """Answer in the block as if these processes ran, so that a run of 64 GPUs can be planned on a laptop."""
    global _planned_world
    # Put back at the end: a planner tries several worlds, one within another.
    before, _planned_world = _planned_world, world
    try:
        yield
    finally:
        _planned_world = before


def is_distributed() -> bool:
    """Whether a process group is alive."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Global rank of this process; 0 without a launcher."""
    # The group counts where it is alive; before that, the launcher's variables say what it will be.
    return dist.get_rank() if is_distributed() else int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Rank among the processes of this machine; 0 without a launcher."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """Number of processes; 1 without a launcher."""
    if _planned_world is not None:
        return _planned_world.processes
    return dist.get_world_size() if is_distributed() else int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Number of processes on this machine; the world size where the launcher does not say."""
    if _planned_world is not None:
        return _planned_world.local_processes
    # DeepSpeed's launcher has a name of its own for it.
    names = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE")
    return int(next((os.environ[name] for name in names if name in os.environ), "1"))


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


def max_over_ranks(number: int) -> int:
    """The largest of all processes' numbers; all must ask."""
    if not is_distributed():
        return number
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"  # NCCL sends nothing from the CPU's memory
    # One collective, where `gathered_objects` pickles, and gathers sizes before values.
    found = torch.tensor(number, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def gathered_objects(value: T) -> list[T]:
    """The values of all processes, by rank, on every process; for small objects."""
    if not is_distributed():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()  # of the group: `world_size` may be that of a plan
    dist.all_gather_object(found, value)
    return found


@dataclass(frozen=True)
class Mesh:
    """Processes as a grid.

    Args:
        world: All processes.
        tensor: Processes that share the matrices of a layer.
        sequence: Processes that share the tokens of a row.
        expert: Processes that share the experts of a layer. They lie within data: each sees rows of its own.
    """

    world: int = 1
    tensor: int = 1
    sequence: int = 1
    expert: int = 1

    @property
    def data(self) -> int:
        """The number of processes, or groups of them, that see rows of their own."""
        return self.world // self.sharing

    @property
    def sharing(self) -> int:
        """The number of processes that see the same rows."""
        return self.tensor * self.sequence

    def data_rank(self, rank: int) -> int:
        """The index of the share of rows that a process sees."""
        # Neighbours share rows: their exchanges of every layer stay within a machine.
        return rank // self.sharing

    def sequence_rank(self, rank: int) -> int:
        """The index of the share of a row's tokens that a process sees."""
        return rank // self.tensor % self.sequence

    def sequence_group(self, rank: int) -> list[int]:
        """Ranks that share the tokens of a row with this one, itself included."""
        # Its members are `tensor` ranks apart: tensor-parallel neighbours lie between them.
        first = rank - self.sequence_rank(rank) * self.tensor
        return list(range(first, first + self.sharing, self.tensor))


def mesh_problems(mesh: Mesh) -> Iterator[ArgumentError]:
    """Problems of sizes below one, and of sizes that do not divide the number of processes."""
    sizes = {
        "tensor_parallel_size": mesh.tensor,
        "sequence_parallel_size": mesh.sequence,
        "expert_parallel_size": mesh.expert,
    }
    wrong = {name: size for name, size in sizes.items() if size < 1}
    for name, size in wrong.items():
        yield ArgumentError(f"{size} processes cannot share anything", place=f"--{name}", fix="give 1 or more")
    # Experts lie within data: the same ones are in every group of as many processes with rows of their own.
    product = mesh.sharing * mesh.expert
    if not wrong and mesh.world % product:
        asked = {name: size for name, size in sizes.items() if size > 1}
        yield ArgumentError(
            f"{mesh.world} process(es) do not divide into groups of {' x '.join(str(size) for size in asked.values())}",
            place=", ".join(f"--{name}" for name in asked),
            fix=f"start a multiple of {product} processes (deepspeed --num_gpus, torchrun --nproc_per_node), "
            "or give smaller sizes",
        )
