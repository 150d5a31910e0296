"""Groups of processes, by the sizes that were asked for."""

from __future__ import annotations

import pytest

from hftune.arguments.computation import ParallelArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError


@pytest.mark.parametrize(("sizes", "sees"), [({}, 8), ({"tensor": 2}, 4), ({"sequence": 4}, 2), ({"expert": 2}, 8)])
def test_who_sees_rows_of_its_own(sizes: dict[str, int], sees: int) -> None:
    args = ParallelArguments(**{f"{kind}_parallel_size": size for kind, size in sizes.items()})
    with ranks.planning_for(ranks.PlannedWorld(8, 8, on_cpu=True)):
        args.check_parallel_sizes()
        assert args.data_parallel_size == sees
        assert (args.mesh.tensor, args.mesh.sequence, args.mesh.expert) == tuple(
            sizes.get(kind, 1) for kind in ("tensor", "sequence", "expert")
        )


@pytest.mark.parametrize(
    "sizes", [{"tensor_parallel_size": 3}, {"sequence_parallel_size": 0}, {"expert_parallel_size": 16}]
)
def test_sizes_for_which_the_processes_do_not_suffice(sizes: dict[str, int]) -> None:
    with ranks.planning_for(ranks.PlannedWorld(8, 8, on_cpu=True)), pytest.raises(ArgumentError):
        ParallelArguments(**sizes).check_parallel_sizes()
