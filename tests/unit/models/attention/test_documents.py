"""Rows taken apart and put together around a model that is made up; which row recomputed layers ask for."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.models.attention.documents import Documents, Row, _filler, _Hooks, documents_of, isolate_documents
from hftune.models.attention.isolation import ATTENTION, BACKBONE, MIXERS
from tests.table.tiny import model_class, tiny_config

BORDERS = torch.tensor([0, 2, 5], dtype=torch.int32)
IDS = torch.tensor([[4, 5, 6, 7, 8]])


def config(pad: Any = 3) -> Any:
    text = SimpleNamespace(pad_token_id=pad, vocab_size=9)
    return SimpleNamespace(get_text_config=lambda: text)


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


@pytest.mark.parametrize(
    ("way", "whole", "expected"), [(BACKBONE, False, True), (MIXERS, True, True), (MIXERS, False, False)]
)
def test_documents_stay_in_one_group_where_they_must(way: str, whole: bool, expected: bool) -> None:
    documents = Documents(way, whole=whole)
    documents.begin(BORDERS)
    assert documents.row is not None and documents.row.whole is expected


def test_ways_from_the_narrow_to_the_wide() -> None:
    documents = Documents(MIXERS)
    assert documents.widen(whole_model=False) is None
    assert "padded rows" in str(documents.widen(whole_model=True)) and documents.way == BACKBONE
    assert documents.widen(whole_model=True) is None


def model_forward(input_ids: Any = None, attention_mask: Any = None, inputs_embeds: Any = None) -> None: ...


def hooks(way: str, forward: Any = model_forward, **given: Any) -> _Hooks:
    return _Hooks(Documents(way, **given), inspect.signature(forward))


def test_a_backbone_reads_rows_with_padding_and_heads_find_their_row() -> None:
    mine = hooks(BACKBONE)
    model: Any = SimpleNamespace(config=config())
    embedded = torch.arange(5.0)[None, :, None]
    given = {
        "input_ids": IDS, "inputs_embeds": embedded, "token_type_ids": IDS + 1, "cu_seq_lens_q": BORDERS,
        "cu_seq_lens_k": BORDERS, "max_length_q": 3, "max_length_k": 3, "position_ids": IDS, "use_cache": False,
        "labels": 1,
    }  # fmt: skip
    args, found = mine.before_model(model, ("a",), given)
    assert args == ("a",) and sorted(found) == [
        "attention_mask",
        "input_ids",
        "inputs_embeds",
        "labels",
        "token_type_ids",
    ]
    assert found["input_ids"].tolist() == [[4, 5, 3], [6, 7, 8]]
    assert found["inputs_embeds"][:, :, 0].tolist() == [[0, 1, 0], [2, 3, 4]]
    assert found["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert found["token_type_ids"].tolist() == [[5, 6, 0], [7, 8, 9]], "of other fillers than tokens have"
    states = torch.tensor([[[1.0], [2.0], [9.0]], [[3.0], [4.0], [5.0]]])
    row = [1.0, 2.0, 3.0, 4.0, 5.0]
    other = torch.zeros(7)
    one, (two, three) = mine.after_backbone(None, (), (states, (states, other)))
    assert one[0, :, 0].tolist() == two[0, :, 0].tolist() == row and three is other
    named = mine.after_backbone(None, (), {"last": states, "cache": None})
    assert named["last"][0, :, 0].tolist() == row and named["cache"] is None
    mine.after_model(model, (), None)
    assert mine.documents._now is None


def test_a_model_that_takes_no_mask_gets_none() -> None:
    def forward(input_ids: Any = None, use_cache: Any = None) -> None: ...

    _, found = hooks(BACKBONE, forward).before_model(
        SimpleNamespace(config=config(None)), (), {"input_ids": IDS, "cu_seq_lens_q": BORDERS, "use_cache": False}
    )
    assert found["input_ids"].tolist() == [[4, 5, 0], [6, 7, 8]] and sorted(found) == ["input_ids", "use_cache"]


@pytest.mark.parametrize(("way", "borders"), [(ATTENTION, BORDERS), (BACKBONE, None)])
def test_other_rows_pass_as_they_are(way: str, borders: Any) -> None:
    mine, given = hooks(way), {"input_ids": IDS, "cu_seq_lens_q": borders}
    assert mine.before_model(SimpleNamespace(config=config()), (), given) == ((), given)
    output = (torch.zeros(1, 5, 2),)
    assert mine.after_backbone(None, (), output) is output
    assert mine.documents.row is not None and mine.documents.row.borders is borders


@pytest.mark.parametrize(("pad", "filler"), [(3, 3), (0, 0), (8, 8), (9, 0), (-1, 0), (None, 0), ([3], 0)])
def test_a_token_to_pad_with(pad: Any, filler: int) -> None:
    assert _filler(config(pad)) == filler


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


@pytest.mark.parametrize("model_type", ["mamba", "llama"])
def test_layers_with_a_state_are_called_by_documents(model_type: str) -> None:
    """Two documents in a row give what each gives alone, in Mamba's state as well; attention is left as it is."""
    torch.manual_seed(0)
    model = model_class(model_type)(tiny_config(model_type)).eval()
    ids = torch.randint(5, 20, (1, 8))
    with torch.no_grad():
        alone = torch.cat([model(input_ids=ids[:, :3]).logits, model(input_ids=ids[:, 3:]).logits], dim=1)
        together = model(input_ids=ids).logits
        isolate_documents(model, MIXERS)
        borders = torch.tensor([0, 3, 8], dtype=torch.int32)
        found = model(
            input_ids=ids, cu_seq_lens_q=borders, cu_seq_lens_k=borders, max_length_q=5, max_length_k=5
        ).logits
    assert not torch.allclose(together[:, 3:], alone[:, 3:], atol=1e-4)
    if model_type == "mamba":
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)
    assert documents_of(model) is not None


def test_the_states_of_a_decoder_within_a_base_are_put_together() -> None:
    """Bart's head calls the decoder within its base; elsewhere the base is the decoder, and is told once."""
    for model_type in ("bart", "llama"):
        model = model_class(model_type)(tiny_config(model_type)).eval()
        before = len(model.get_decoder()._forward_hooks)
        isolate_documents(model, BACKBONE)
        assert len(model.get_decoder()._forward_hooks) == before + 1


def test_weights_that_are_partitioned_keep_documents_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for partitioned in (False, True):
        monkeypatch.setattr("hftune.distributed.zero.is_any_partitioned", lambda model, found=partitioned: found)
        model = model_class("mamba")(tiny_config("mamba"))
        isolate_documents(model, MIXERS)
        found = documents_of(model)
        assert found is not None and (found.way, found.whole) == (MIXERS, partitioned)
