"""Packed documents that share a beginning: the same losses and gradients as with one of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.arguments.entry import parse_arguments
from hftune.constants import IGNORE_INDEX
from hftune.data.packing import beginnings
from hftune.data.splits import Splits
from hftune.errors import ArgumentError
from hftune.models.attention import segments
from hftune.models.attention.documents import documents_of, isolate_documents
from hftune.models.attention.isolation import ATTENTION
from hftune.models.attention.names import registered
from hftune.models.attention.segments import SEGMENTS
from hftune.trainers.sft import SFTTrainer
from hftune.trainers.shared_beginnings import SharingCollator
from tests.unit.data.helpers import pack, to_dataset

# Three rows of a conversation, and another document; the last of the first one's tokens is at the place at which what
# there is of the second one begins (8), so that positions alone show no border between them.
ROWS = [
    ([3, 4, 5, 6, 30, 31, 32, 33], 4),
    ([*range(3, 12), 40, 41], 9),
    ([*range(3, 16), 50, 51], 13),
    ([9, 8, 7, 6], 1),
]


@pytest.fixture(autouse=True)
def short_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "LEAST", 3)


def rows(shared: bool) -> Any:
    labels = [[IGNORE_INDEX] * first + ids[first:] for ids, first in ROWS]
    data = to_dataset({"input_ids": [ids for ids, _ in ROWS], "labels": labels})
    return pack(data, 40, shared_beginnings=shared)[0]


def trainer_for(folder: Path, out: Path, shared: bool, attention: str = SEGMENTS) -> SFTTrainer:
    flags = ["--use_cpu", "True", "--report_to", "none", "--packing", "--max_steps", "1", "--save_strategy", "no"]
    *_, args = parse_arguments("sft", ["--output_dir", str(out), *flags, "--shared_prompts", str(shared)])
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=registered(attention))
    isolate_documents(model, ATTENTION)
    return SFTTrainer(model, args, AutoTokenizer.from_pretrained(folder), Splits(rows(shared), rows(shared)))


def test_a_batch() -> None:
    (row,) = rows(shared=True)
    assert row["seq_lengths"] == [15, 5, 3, 4] and row["shared_tokens"] == [0, 3, 8, 0]
    batch = SharingCollator()([row])
    shared = batch["shared_prompts"]
    assert (shared.prompts, shared.answers, shared.behind) == ((8, 0), ((7, 5, 3), (4,)), ((8, 3, 8), (0,)))
    assert batch["position_ids"].tolist() == [[*range(15), *range(3, 8), *range(8, 11), *range(4)]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 15, 20, 23, 27] and batch["max_length_q"] == 15
    assert [place for place in (0, 15, 20, 23) if batch["labels"][0, place] != IGNORE_INDEX] == []
    (plain,) = rows(shared=False)
    assert "shared_prompts" not in SharingCollator()([plain]), "nothing is shared"
    both = SharingCollator()([row, row])["shared_prompts"]
    assert both.prompts == (8, 0, 8, 0)


def step(trainer: SFTTrainer) -> tuple[float, torch.Tensor]:
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return float(loss.detach()), torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])


@pytest.mark.parametrize("copies", [False, True])
def test_losses_and_gradients_are_the_same(tiny_model: Path, tmp_path: Path, copies: bool) -> None:
    one, other = (trainer_for(tiny_model, tmp_path, shared) for shared in (True, False))
    documents = documents_of(one.model)
    assert documents is not None
    documents.copies_prompts = copies  # as a model does that tells its attention nothing of the row
    (loss, gradient), (wanted, wanted_gradient) = step(one), step(other)
    assert loss == pytest.approx(wanted, abs=1e-6)
    assert torch.allclose(gradient, wanted_gradient, atol=1e-6)
    assert len(one.train_dataset[0]["input_ids"]) == 27 < len(other.train_dataset[0]["input_ids"]) == 38


def test_a_run_trains_and_evaluates(tiny_model: Path, tmp_path: Path) -> None:
    one, other = (trainer_for(tiny_model, tmp_path, shared) for shared in (True, False))
    assert one.evaluate()["eval_loss"] == pytest.approx(other.evaluate()["eval_loss"], abs=1e-6)
    assert one.train().training_loss == pytest.approx(other.train().training_loss, abs=1e-6)


def test_an_attention_that_sees_no_beginnings_gets_copies(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = segments._by_runs
    monkeypatch.setattr(segments, "_by_runs", lambda *args: attention(*args[:-1], None))
    trainer = trainer_for(tiny_model, tmp_path, shared=True)
    trainer.train()
    documents = documents_of(trainer.model)
    assert documents is not None and documents.copies_prompts


def test_without_a_way_left_the_run_stops(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = segments._by_runs
    monkeypatch.setattr(segments, "_by_runs", lambda *args: attention(*args[:-1], None))
    trainer = trainer_for(tiny_model, tmp_path, shared=True)
    del trainer.model.hftune_documents
    with pytest.raises(ArgumentError, match="share their beginning in a row are not read") as caught:
        trainer.train()
    assert "--shared_prompts False" in str(caught.value) and trainer.state.global_step == 0
