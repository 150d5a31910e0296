"""The digest of a batch: one number for the same tokens, however they are laid out and shared out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.constants import FILLER
from hftune.trainers.features.batch_digests import BITS, BatchDigests, digest
from hftune.trainers.preference.batches import PairCollator
from tests.unit.trainers.features.made_up import run

DOCUMENTS = st.lists(st.lists(st.integers(0, 200_000), min_size=1, max_size=9), min_size=1, max_size=6)


def padded(documents: list[list[int]], pad: int = 0, *, left: bool = False) -> dict[str, torch.Tensor]:
    width = max(map(len, documents))
    rows, masks = [], []
    for document in documents:
        empty = width - len(document)
        fill, zeros = [pad] * empty, [0] * empty
        rows.append([*fill, *document] if left else [*document, *fill])
        masks.append([*zeros, *[1] * len(document)] if left else [*[1] * len(document), *zeros])
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}


def flat(documents: list[list[int]]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.tensor([[token for document in documents for token in document]]),
        "position_ids": torch.tensor([[place for document in documents for place in range(len(document))]]),
    }


@settings(max_examples=25)
@given(DOCUMENTS, st.integers(0, 200_000))
def test_layout_and_padding_do_not_count(documents: list[list[int]], pad: int) -> None:
    wanted = digest(flat(documents)).item()
    assert digest(padded(documents)) == digest(padded(documents, pad)) == digest(padded(documents, pad, left=True))
    assert digest(padded(documents)).item() == wanted
    assert 0 <= wanted < 2**BITS


@settings(max_examples=25)
@given(DOCUMENTS)
def test_another_token_or_place_counts(documents: list[list[int]]) -> None:
    other = [list(document) for document in documents]
    other[0][0] += 1
    assert digest(flat(other)) != digest(flat(documents))
    moved = flat(documents)
    moved["position_ids"] = moved["position_ids"] + 1
    assert digest(moved) != digest(flat(documents))


def test_a_known_value() -> None:
    """Token 1 at place 0, by hand: x = 0x9E3779B1, x ^= x >> 15, x *= 0x27D4EB2F, x ^= x >> 17, 40 bits."""
    x = 0x9E3779B1
    x = (x ^ (x >> 15)) * 0x27D4EB2F
    wanted = (x ^ (x >> 17)) & (2**40 - 1)
    assert digest({"input_ids": torch.tensor([[1]])}).item() == wanted
    assert digest({"input_ids": torch.tensor([[1]]), "position_ids": torch.zeros(3, 1, 1)}).item() == wanted


@settings(max_examples=25)
@given(DOCUMENTS, st.data())
def test_rows_that_fill_up_a_batch_do_not_count(documents: list[list[int]], data: Any) -> None:
    new = data.draw(st.integers(0, len(documents)))
    wanted = digest(padded(documents[:new])) if new else 0
    batch = padded(documents)
    behind = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    behind[new:] = True
    assert digest({**batch, FILLER: behind}) == wanted
    row = flat(documents)
    behind = torch.arange(row["input_ids"].numel())[None] >= sum(map(len, documents[:new]))
    assert digest({**row, FILLER: behind}) == wanted


@pytest.mark.parametrize("layout", [{"flat": False}, {"flat": True}, {"flat": True, "shared": True}])
@pytest.mark.parametrize("answers", [("chosen_ids", "rejected_ids"), ("completion_ids",)])
@pytest.mark.parametrize("new", range(3))
def test_pairs_that_fill_up_a_batch_do_not_count(layout: dict[str, bool], answers: tuple[str, ...], new: int) -> None:
    collator = PairCollator(0, **layout)
    records = [
        {"prompt_ids": [n + 1] * (n + 1), **{name: [10 * n + i] * (3 - n) for i, name in enumerate(answers)}}
        for n in range(3)
    ]
    fills = torch.arange(3) >= new
    assert digest({**collator(records), FILLER: fills}) == (digest(collator(records[:new])) if new else 0)


def test_prompts_are_read_as_text() -> None:
    one, two = {"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 1}
    assert digest([one, two]) == digest([two, one]) != digest([one, one])
    assert digest([one]) == digest(({"answer": 1, "prompt": "a"},))
    assert digest({"prompt": "a"}) == digest([{"prompt": "a"}]) != digest({"prompt": "b"})


def step(feature: BatchDigests, trainer: Any, *documents: list[int]) -> None:
    feature.before_step(trainer, None, padded(list(documents)))


def test_a_log_has_the_batches_since_the_last() -> None:
    feature, trainer = BatchDigests(), run()
    assert feature.latest is None
    step(feature, trainer, [1, 2])
    step(feature, trainer, [3])
    feature.before_log(trainer, {"eval_loss": 1.0})
    assert feature.latest is None, "not of an evaluation"
    feature.before_log(trainer, {"loss": 1.0})
    assert feature.latest == digest(padded([[1, 2], [3]])).item()
    step(feature, trainer, [4])
    feature.before_log(trainer, {"loss": 1.0})
    assert feature.latest == digest(padded([[4]])).item()


def test_what_was_not_logged_is_resumed() -> None:
    whole, first, second, trainer = BatchDigests(), BatchDigests(), BatchDigests(), run()
    for feature, documents in ((whole, [[1, 2], [3]]), (first, [[1, 2]]), (second, [[3]])):
        if feature is second:
            feature.load_state(trainer, first.state(trainer))
        step(feature, trainer, *documents)
    for feature in (whole, second):
        feature.before_log(trainer, {"loss": 1.0})
    assert whole.latest == second.latest
    step(second, trainer, [5])
    assert second.state(trainer) == {"batches": digest(padded([[5]])).item()}, "what was logged does not count again"
    second.load_state(trainer, {})
    assert second.state(trainer) == {"batches": digest(padded([[5]])).item()}
    assert BatchDigests().state(trainer) == {"batches": 0}


def test_processes_that_share_matrices_count_once() -> None:
    """Four processes, two of which see the same rows: all together have counted everything twice."""
    trainer = run(args={"world_size": 4, "tensor_parallel_size": 2})
    trainer.accelerator = SimpleNamespace(reduce=lambda value, how: value * 4 if how == "sum" else None)
    feature = BatchDigests()
    step(feature, trainer, [1, 2])
    feature.before_log(trainer, {"loss": 1.0})
    assert feature.latest == digest(padded([[1, 2]])).item() * 2 % 2**BITS
