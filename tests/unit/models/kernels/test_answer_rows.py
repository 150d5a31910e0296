"""Padded rows of prompts and answers as one row, and what comes of it back in their shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from hftune.models.attention.documents import isolate_documents
from hftune.models.attention.isolation import ATTENTION
from hftune.models.attention.segments import SEGMENTS
from hftune.models.kernels.scoring_head import padded_rows, rows_to_score, shared_rows
from tests.table.tiny import tiny_config

PAD = 0
Rows = list[tuple[list[int], list[int]]]


def batch(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts padded on the left, answers on the right, as TRL does it; answers are labelled."""
    left, right = max(len(prompt) for prompt, _ in rows), max(len(answer) for _, answer in rows)
    ids = [[PAD] * (left - len(p)) + p + a + [PAD] * (right - len(a)) for p, a in rows]
    mask = [[0] * (left - len(p)) + [1] * len(p + a) + [0] * (right - len(a)) for p, a in rows]
    labels = [[-100] * left + a + [-100] * (right - len(a)) for p, a in rows]
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(labels)


# Two answers to one prompt with another prompt's between them, and an answer that is cut from the loss.
ROWS: Rows = [([5, 6], [11, 12, 13]), ([7], [14]), ([5, 6], [15, 16]), ([8, 9], [])]


def test_a_row_of_shared_prompts_by_hand() -> None:
    rows = shared_rows(*batch(ROWS))
    # prompt 5 6, its answers 11 12 13 and 15 16, prompt 7, its answer 14; the last row has nothing to score.
    assert rows.inputs["input_ids"].tolist() == [[5, 6, 11, 12, 13, 15, 16, 7, 14]]
    assert rows.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3, 0, 1]]
    assert rows.inputs["cu_seq_lens_q"].tolist() == [0, 5, 7, 9]  # runs: 5 6 11 12 13, 15 16, 7 14
    assert rows.inputs["max_length_k"] == 5 and rows.inputs["use_cache"] is False
    assert rows.inputs["shared_prompts"].prompts == (2, 1)
    # In the order of the padded rows: 11 12 13 are predicted by 6 11 12, 14 by 7, 15 16 by 6 15.
    assert rows.at.tolist() == [1, 2, 3, 7, 1, 5]
    assert rows.ids.tolist() == [11, 12, 13, 14, 15, 16]
    # A padded row is 2 + 3 tokens, of which the first is never predicted.
    assert rows.spread(torch.arange(1.0, 7.0)).tolist() == [[0, 1, 2, 3], [0, 4, 0, 0], [0, 5, 6, 0], [0] * 4]
    picked = rows.pick(torch.arange(9.0)[None, :, None])
    assert picked.squeeze(1).tolist() == [1, 2, 3, 7, 1, 5]


def test_padded_rows_by_hand() -> None:
    ids, mask, labels = batch(ROWS)
    rows = padded_rows(ids, mask, labels)
    assert torch.equal(rows.inputs["input_ids"], ids) and torch.equal(rows.inputs["attention_mask"], mask)
    assert rows.inputs["use_cache"] is False, "nothing is generated"
    # A row is 5 tokens: labels 11 12 13 at places 2 3 4 of the first, 14 at 2 of the second, 15 16 of the third.
    assert rows.at.tolist() == [1, 2, 3, 6, 11, 12]
    assert rows.ids.tolist() == [11, 12, 13, 14, 15, 16]


def test_a_batch_without_an_answer_is_a_row_all_the_same() -> None:
    rows = shared_rows(*batch([([5, 6], [])]))
    assert rows.inputs["input_ids"].shape == (1, 2) and not len(rows.at) and not len(rows.ids)
    states = torch.ones(1, 2, 3, requires_grad=True)
    column = rows.spread(rows.pick(states).sum(-1))
    column.sum().backward()
    assert column.shape == (1, 1) and states.grad is not None and not states.grad.any()
    # However long the row: its first token and its last one.
    longer = shared_rows(*batch([([5, 6, 7, 8], []), ([5, 9], [])]))
    assert longer.inputs["input_ids"].tolist() == [[5, 8]] and longer.mask.shape == (2, 3)


def test_an_answer_without_a_prompt_leaves_rows_padded() -> None:
    ids = torch.tensor([[5, 6]])
    rows = shared_rows(ids, torch.tensor([[0, 1]]), torch.tensor([[-100, 6]]))
    assert "shared_prompts" not in rows.inputs and rows.at.tolist() == [0]


def model(model_type: str, attention: str) -> Any:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(tiny_config(model_type), attn_implementation=attention).eval()
    if attention == SEGMENTS:
        isolate_documents(made, ATTENTION)
    return made


def states_of(made: Any, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    rows = rows_to_score(made, *given)
    return rows.pick(made.model(**rows.inputs).last_hidden_state)


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_states_are_those_of_padded_rows(model_type: str) -> None:
    given = batch(ROWS)
    padded = states_of(model(model_type, "sdpa"), given)
    made = model(model_type, SEGMENTS)
    assert rows_to_score(made, *given).inputs["input_ids"].tolist() == [[5, 6, 11, 12, 13, 15, 16, 7, 14]]
    torch.testing.assert_close(states_of(made, given), padded, rtol=1e-4, atol=1e-5)
    # A model that cannot share prompts gets a copy before each answer.
    made.hftune_documents.copies_prompts = True
    rows = rows_to_score(made, *given)
    assert rows.inputs["input_ids"].tolist() == [[5, 6, 11, 12, 13, 5, 6, 15, 16, 7, 14]]
    torch.testing.assert_close(states_of(made, given), padded, rtol=1e-4, atol=1e-5)
    alone = torch.tensor([[5, 6]]), torch.tensor([[0, 1]]), torch.tensor([[-100, 6]])
    assert rows_to_score(made, *alone).inputs["input_ids"].tolist() == [[5, 6]], "without a prompt none is copied"


def test_a_model_that_reads_documents_as_padded_rows_gets_such() -> None:
    made = model("llama", SEGMENTS)
    made.hftune_documents.way = "backbone"
    assert "attention_mask" in rows_to_score(made, *batch(ROWS)).inputs


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 3), min_size=1, max_size=4), st.lists(st.integers(1, 9), min_size=0, max_size=4)
        ),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_every_token_finds_its_prefix(made: Rows) -> None:
    """What stands before a token in its padded row stands at `at` and before it in the row, by its positions."""
    given_ids = batch(made)
    rows = shared_rows(*given_ids)
    assert torch.equal(rows.ids, padded_rows(*given_ids).ids)
    row = rows.inputs["input_ids"][0].tolist()
    expected = [(prompt + answer)[: len(prompt) + n] for prompt, answer in made for n in range(len(answer))]
    for place, prefix in zip(rows.at.tolist(), expected, strict=True):
        assert row[place] == prefix[-1]
        assert rows.inputs["position_ids"][0, place] == len(prefix) - 1
