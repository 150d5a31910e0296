"""Over how many processes one model's work is spread, in addition to ZeRO."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.distributed import ranks
from hftune.distributed.mesh import Mesh, mesh_problems
from hftune.errors import raise_together


@dataclass
class ParallelArguments:
    """Sizes of the groups of processes that work on the same model, rows or experts. 1: no such groups."""

    tensor_parallel_size: int = field(
        default=1,
        metadata={"help": "Processes that share the matrices of every layer (AutoTP); they see the same rows."},
    )
    sequence_parallel_size: int = field(
        default=1,
        metadata={"help": "Processes that share the tokens of every row (Ulysses); they see the same rows."},
    )
    expert_parallel_size: int = field(
        default=1,
        metadata={
            "help": "Processes that share the experts of every layer of a mixture (AutoEP); each sees rows of its own."
        },
    )

    @property
    def mesh(self) -> Mesh:
        """Which processes work together; of a plan: those that it is made for."""
        return Mesh(
            # Computed at each call: a plan imagines other worlds with the same arguments.
            world=ranks.world_size(),
            tensor=self.tensor_parallel_size,
            sequence=self.sequence_parallel_size,
            expert=self.expert_parallel_size,
        )

    @property
    def data_parallel_size(self) -> int:
        """Processes that see rows of their own: the factor of batches, samplers and token counts."""
        return self.mesh.data

    def check_parallel_sizes(self) -> None:
        """Refuse sizes for which the processes do not suffice.

        Raises:
            ArgumentError: A size below 1, or processes that do not divide into such groups.
        """
        raise_together(mesh_problems(self.mesh))
