"""Which processes share rows, tokens, matrices or experts: arithmetic on ranks, no process group.

Ranks count tensor-parallel neighbours first, then those of a sequence, then data: with 8 processes, tensor 2 and
sequence 2, rank 5 is tensor 1 of sequence 0 of data 1. That is how DeepSpeed and accelerate lay out their groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hftune.errors import ArgumentError


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
