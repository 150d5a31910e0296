"""Layers with a state are found by what they are, and end it with each document of a row."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hftune.models.attention.documents import Documents
from hftune.models.attention.isolation import MIXERS
from hftune.models.attention.mixers import Unfolding, call_by_documents, mixers_of, similar

LENGTHS = [3, 1, 7, 4]


class Attention(nn.Module):
    def forward(self, hidden_states: torch.Tensor, past_key_values: Any = None) -> Any:
        return ALL_ATTENTION_FUNCTIONS["sdpa"](self, hidden_states)


class Sum(nn.Module):
    """The sum of all tokens so far, and what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def forward(self, hidden_states: torch.Tensor, cache_params: Any = None, **kwargs: Any) -> Any:
        self.calls.append(kwargs)
        return hidden_states.cumsum(1), hidden_states.shape[0]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, padding=2, groups=2)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.conv(hidden_states.transpose(1, 2))[..., : hidden_states.shape[1]].transpose(1, 2)


class Layer(GradientCheckpointingLayer):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer, self.mlp = mixer, nn.Linear(2, 2)

    def forward(self, hidden_states: torch.Tensor, past_key_values: Any = None) -> torch.Tensor:
        return hidden_states


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, (Attention(), Sum(), Convolution())))

    def forward(self, hidden_states: torch.Tensor, past_key_values: Any = None) -> torch.Tensor:
        return hidden_states


def begun(lengths: list[int] | None = LENGTHS) -> Documents:
    documents = Documents(MIXERS)
    documents.begin(None if lengths is None else torch.tensor([0, *lengths]).cumsum(0).int())
    return documents


def test_found_by_structure() -> None:
    model = Model()
    assert mixers_of(model) == [model.layers[1].mixer, model.layers[2].mixer]
    assert mixers_of(Layer(Attention())) == []


def by_hand(row: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.cumsum(1) for part in row.split(LENGTHS, dim=1)], dim=1)


def test_a_state_ends_with_its_document() -> None:
    mixer, row = Sum(), torch.randn(1, sum(LENGTHS), 2)
    call_by_documents(mixer, begun())
    out, last = mixer(hidden_states=row, cu_seq_lens_q=torch.zeros(2), seq_idx=None, other=row[0, 0])
    torch.testing.assert_close(out, by_hand(row))
    assert last == 1  # what is no row is that of the last call, which had the shortest document
    assert len(mixer.calls) == 3 and all(set(call) == {"other"} for call in mixer.calls)
    assert torch.equal(mixer(row)[0], out)


@pytest.mark.parametrize("lengths", [None, [15]])
def test_padded_rows_and_a_single_document_are_left_alone(lengths: list[int] | None) -> None:
    mixer, row = Sum(), torch.randn(1, 15, 2)
    call_by_documents(mixer, begun(lengths))
    # transformers' own path refuses borders, and there are none.
    assert torch.equal(mixer(row, seq_idx=1, other=2)[0], row.cumsum(1)) and mixer.calls == [{"other": 2}]


def test_a_copy_has_documents_of_its_own() -> None:
    mixer, row = Sum(), torch.randn(1, sum(LENGTHS), 2)
    call_by_documents(mixer, begun())
    other = copy.deepcopy(mixer)
    mixer.hftune_documents.begin(None)
    torch.testing.assert_close(other(row)[0], by_hand(row))
    assert torch.equal(mixer(row)[0], row.cumsum(1)) and len(mixer.calls) == 1


SIX = [3, 1, 7, 4, 1, 6]
CPU = torch.device("cpu")


@pytest.mark.parametrize("whole", [True, False])
def test_there_and_back(whole: bool) -> None:
    unfolding = Unfolding(SIX, CPU, whole=whole)
    row = torch.arange(2.0 * sum(SIX)).view(1, -1, 2).requires_grad_()
    rows = [group.unfold(row) for group in unfolding.groups]
    assert len(rows) == (1 if whole else 3)
    assert all(group.holds(one) and not group.holds(row) for group, one in zip(unfolding.groups, rows, strict=True))
    back = unfolding.fold(rows)
    assert torch.equal(back, row)
    back.square().sum().backward()
    assert torch.equal(row.grad, 2 * row.detach())


def test_each_document_begins_a_row() -> None:
    (group,) = Unfolding([2, 3], CPU, whole=True).groups
    rows = group.unfold(torch.tensor([[5, 6, 7, 8, 9]]))
    assert rows.tolist() == [[5, 6, 0], [7, 8, 9]]
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
