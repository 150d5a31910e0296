"""Which process this is, by the launchers' variables; and the processes of a plan."""

from __future__ import annotations

import pytest

from hftune.distributed import ranks
from hftune.distributed.ranks import Mesh, mesh_problems


@pytest.fixture(autouse=True)
def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test before may have left a process group of one alive."""
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: False)


def test_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_SIZE", "8")  # DeepSpeed's launcher
    assert ranks.local_world_size() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert ranks.local_world_size() == 4


def test_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (ranks.rank(), ranks.local_rank(), ranks.world_size(), ranks.local_world_size()) == (0, 0, 1, 1)
    assert ranks.is_main() and not ranks.is_distributed()
    assert ranks.gathered_objects("own") == ["own"] and ranks.max_over_ranks(3) == 3
    assert ranks.all_agree(True) and not ranks.all_agree(False)


def test_by_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert (ranks.rank(), ranks.local_rank(), ranks.world_size()) == (5, 1, 8)
    assert not ranks.is_main()


def test_a_planned_world_lasts_for_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(KeyError), ranks.planning_for(ranks.PlannedWorld(64, 8)) as _:
        assert (ranks.world_size(), ranks.local_world_size()) == (64, 8)
        with ranks.planning_for(ranks.PlannedWorld(2, 2)):
            assert ranks.world_size() == 2
        assert ranks.world_size() == 64
        raise KeyError
    assert ranks.planned_world() is None and ranks.world_size() == 1


def test_ranks_lie_as_deepspeed_lays_them():
    mesh = Mesh(world=8, tensor=2, sequence=2)
    # data 0: sequence 0 = (0, 1), sequence 1 = (2, 3); data 1: (4, 5), (6, 7)
    assert mesh.data == 2
    assert mesh.sharing == 4
    assert [mesh.data_rank(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [mesh.sequence_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert mesh.sequence_group(5) == [5, 7]
    assert mesh.sequence_group(6) == [4, 6]


def test_experts_are_shared_by_processes_with_rows_of_their_own():
    mesh = Mesh(world=4, expert=2)
    assert mesh.data == 4
    assert [mesh.data_rank(rank) for rank in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("sizes", [{}, {"tensor": 2}, {"tensor": 2, "sequence": 2}, {"expert": 4}])
def test_groups_that_fit_are_no_problem(sizes):
    assert not list(mesh_problems(Mesh(world=4, **sizes)))


def test_processes_that_do_not_suffice():
    (problem,) = mesh_problems(Mesh(world=6, tensor=2, sequence=2))
    text = str(problem)
    assert "6 process(es) do not divide into groups of 2 x 2" in text
    assert "--tensor_parallel_size, --sequence_parallel_size" in text
    assert "multiple of 4 processes" in text


def test_sizes_that_are_none():
    texts = [str(problem) for problem in mesh_problems(Mesh(world=4, tensor=0, expert=-1))]
    assert len(texts) == 2
    assert "--tensor_parallel_size" in texts[0]
    assert "-1 processes cannot share anything" in texts[1]
