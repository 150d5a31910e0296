"""Heads that score: drawn by the seed, kept where they were trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from hftune.models.loading.reward_model import init_score_head
from tests.unit.models.adapting import loaded


def test_score_head_depends_on_the_seed_alone(tiny_model: Path) -> None:
    heads = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
        init_score_head(model, seed=7)
        heads.append(model.score.weight.detach().clone())
    assert torch.equal(*heads)
    assert heads[0].std().item() == pytest.approx(1 / 65**0.5, rel=0.25)  # hidden size 64


def test_a_trained_head_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    first, tokenizer = loaded("rm", tiny_model)
    with torch.no_grad():
        first.score.weight.fill_(0.5)
    first.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, _ = loaded("rm", tmp_path)
    assert torch.equal(again.score.weight, first.score.weight)
