"""A row of documents as padded rows, and back."""

from __future__ import annotations

import pytest
import torch

from hftune.models.attention.mixers import Unfolding, similar

LENGTHS = [3, 1, 7, 4, 1, 6]
CPU = torch.device("cpu")


@pytest.mark.parametrize("whole", [True, False])
def test_there_and_back(whole: bool) -> None:
    unfolding = Unfolding(LENGTHS, CPU, whole=whole)
    row = torch.arange(2.0 * sum(LENGTHS)).view(1, -1, 2).requires_grad_()
    rows = [group.unfold(row, filler=-1) for group in unfolding.groups]
    assert len(rows) == (1 if whole else 3)
    assert all(group.holds(one) and not group.holds(row) for group, one in zip(unfolding.groups, rows, strict=True))
    back = unfolding.fold(rows)
    assert torch.equal(back, row)
    back.square().sum().backward()
    assert torch.equal(row.grad, 2 * row.detach())


def test_each_document_begins_a_row() -> None:
    (group,) = Unfolding([2, 3], CPU, whole=True).groups
    rows = group.unfold(torch.tensor([[5, 6, 7, 8, 9]]), filler=1)
    assert rows.tolist() == [[5, 6, 1], [7, 8, 9]]
    assert group.mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert group.pick(rows).tolist() == [5, 6, 7, 8, 9]


def test_at_most_half_is_padding() -> None:
    groups = similar([100, 1, 49, 50, 2, 99, 0])
    assert groups == [[0, 5, 3], [2], [4, 1]]
    lengths = torch.randint(1, 4000, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    for group in similar(lengths):
        assert 2 * min(lengths[one] for one in group) >= max(lengths[one] for one in group)
    assert sorted(one for group in similar(lengths) for one in group) == list(range(500))


def test_what_is_of_the_row() -> None:
    unfolding = Unfolding([2, 3], CPU, whole=True)
    shapes = [(1, 5), (1, 5, 2), (5,), (2, 5), (1, 4), (1, 1, 5, 5)]
    assert [unfolding.reads(torch.zeros(shape)) for shape in shapes] == [True, True, False, False, False, False]
    assert not unfolding.reads(None)
