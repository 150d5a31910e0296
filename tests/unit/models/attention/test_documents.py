"""Rows taken apart and put together around a model that is made up; which row recomputed layers ask for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hftune.models.attention.documents import Documents, Row, documents_of, isolate_documents
from hftune.models.attention.isolation import ATTENTION, MIXERS
from tests.table.tiny import model_class, tiny_config

BORDERS = torch.tensor([0, 2, 5], dtype=torch.int32)
IDS = torch.tensor([[4, 5, 6, 7, 8]])


def test_a_row_with_several_documents() -> None:
    row = Row(BORDERS, whole=True)
    assert row.has_several and not Row(BORDERS[:2], whole=True).has_several and not Row(None, whole=False).has_several
    assert row.unfolding is row.unfolding


def test_recomputed_layers_have_the_row_of_the_last_pass_with_gradients() -> None:
    documents = Documents(ATTENTION)
    assert documents.row is None
    documents.begin(BORDERS)
    trained = documents.row
    assert trained is not None and trained.borders is BORDERS and trained.whole is False
    documents.end()
    with torch.no_grad():
        documents.begin(None)
        assert documents.row is not trained and documents.row is not None
        documents.end()
    assert documents.row is trained
    documents.begin(None)
    documents.end()
    assert documents.row is not trained and documents.row.borders is None


def test_a_pass_that_fails_is_over_as_well() -> None:
    """What is called next has no borders of the row before."""
    model: Any = model_class("llama")(tiny_config("llama"))
    isolate_documents(model, ATTENTION)
    documents = documents_of(model)
    assert documents is not None
    model.model.layers[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), torch.no_grad():
        model(input_ids=IDS, cu_seq_lens_q=BORDERS, cu_seq_lens_k=BORDERS, max_length_q=3, max_length_k=3)
    assert documents.row is None


def test_weights_that_are_partitioned_keep_documents_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for partitioned in (False, True):
        monkeypatch.setattr("hftune.distributed.zero.is_any_partitioned", lambda model, found=partitioned: found)
        model = model_class("mamba")(tiny_config("mamba"))
        isolate_documents(model, MIXERS)
        found = documents_of(model)
        assert found is not None and (found.way, found.whole) == (MIXERS, partitioned)
        found.begin(BORDERS)
        assert found.row is not None and found.row.whole is partitioned
