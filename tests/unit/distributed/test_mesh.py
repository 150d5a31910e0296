import pytest

from hftune.distributed.ranks import Mesh, mesh_problems


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
