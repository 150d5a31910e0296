"""Figures of pairs, each counted once."""

from __future__ import annotations

import torch
from datasets import Dataset

from hftune.constants import FILLER
from hftune.trainers.features.pair_figures import PairFigures, marked
from tests.unit.trainers.features import made_up

CPU = torch.device("cpu")


def test_records_are_filled_up_and_marked() -> None:
    found = marked(Dataset.from_dict({"id": [7, 8, 9]}), 4)
    assert found["id"][:] == [7, 8, 9, 7] and found[FILLER][:] == [False, False, False, True]
    assert marked(Dataset.from_dict({"id": [1, 2]}), 2)[FILLER][:] == [False, False]


def test_logs_of_training_have_means_without_the_loss() -> None:
    feature, run, logs = PairFigures(CPU), made_up.run(), {"loss": 1.0}
    feature.metrics["train"].add("loss/pairs", torch.tensor([5.0]))
    feature.metrics["train"].add("loss/tokens", torch.tensor([5.0]))
    feature.metrics["train"].add("rewards/margins", torch.tensor([1.0, 2.0, 6.0]))
    feature.seen_tokens += 12
    feature.before_log(run, logs)
    assert logs == {"loss": 1.0, "rewards/margins": 3.0, "num_tokens": 12.0}
    other = {"eval_loss": 1.0}
    feature.before_log(run, other)
    assert other == {"eval_loss": 1.0}


def test_an_evaluation_is_measured_by_itself() -> None:
    feature, run, metrics = PairFigures(CPU), made_up.run(), dict[str, float]()
    feature.metrics["eval"].add("loss/pairs", torch.tensor([100.0]))
    feature.begin_loop(run)
    feature.metrics["eval"].add("loss/pairs", torch.tensor([1.0, 3.0]))
    feature.end_loop(run, metrics, "eval")
    assert metrics == {"eval_loss": 2.0}
    feature.begin_loop(run)
    feature.metrics["eval"].add("loss/pairs", torch.tensor([1.0, 3.0]))
    feature.metrics["eval"].add("loss/tokens", torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0]))
    feature.end_loop(run, metrics, "eval")
    assert metrics == {"eval_loss": 4.0}, "a mean over pairs, and one over tokens"


def test_sums_and_tokens_are_resumed() -> None:
    before, after, run = PairFigures(CPU), PairFigures(CPU), made_up.run()
    before.metrics["train"].add("margin", torch.tensor([1.0, 5.0]), torch.tensor([1.0, 3.0]))
    before.seen_tokens += 9
    after.load_state(run, before.state(run))
    assert after.metrics["train"].means(run.accelerator) == {"margin": 4.0} and int(after.seen_tokens) == 9
