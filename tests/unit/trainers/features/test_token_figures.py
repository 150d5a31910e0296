"""Where TRL finds token accuracy and entropy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from hftune.trainers.features.answer_loss import AnswerLoss, TokenSums
from hftune.trainers.features.held_out_loss import HeldOutLoss
from hftune.trainers.features.token_figures import TokenFigures
from tests.unit.trainers.features import made_up


def run_in(training: bool, **metrics: Any) -> Any:
    run = made_up.run(model=SimpleNamespace(training=training))
    run._metrics, run._total_train_tokens, run._tp_size = {"train": {}, "eval": metrics}, 100, 2
    return run


def features() -> tuple[TokenFigures, AnswerLoss, HeldOutLoss]:
    answers, held_out = AnswerLoss(measures_tokens=True), HeldOutLoss()
    answers.sums = {mode: TokenSums(torch.device("cpu")) for mode in ("train", "eval")}
    return TokenFigures(answers, held_out), answers, held_out


def test_sums_become_means_and_are_read_once() -> None:
    (feature, answers, _), run = features(), run_in(training=True)
    answers.sums["train"].sums = torch.tensor([6.0, 3.0, 4.0, 10.0], dtype=torch.float64)
    feature.before_log(run, {})
    # Tensor-parallel processes have the same tokens, so that those of two count once.
    assert run._metrics["train"] == {"entropy": [1.5], "mean_token_accuracy": [0.75], "num_tokens": [105]}
    feature.before_log(run, {})
    assert run._total_train_tokens == 105


def test_means_of_batches_are_weighted_by_their_tokens() -> None:
    (feature, _, held_out), run = features(), run_in(training=False, entropy=[1.0, 4.0])
    held_out.tokens_per_batch = (3.0, 1.0)
    feature.before_log(run, {})
    assert run._metrics["eval"] == {"entropy": [1.75]}, "and no empty entry for what was not measured"
