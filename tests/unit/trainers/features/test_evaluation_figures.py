"""What an evaluation returns."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hftune.trainers.features import evaluation_figures
from hftune.trainers.features.evaluation_figures import EvaluationFigures, perplexity
from tests.unit.trainers.features import made_up


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(evaluation_figures.zero, "release_fetched", lambda engine: None)
    return made_up.run(model_wrapped=None, reports_perplexity=True, args={"load_best_model_at_end": False})


def test_logged_figures_and_perplexity_are_returned(run: Any) -> None:
    run.state.log_history = [
        {"eval_loss": 9.0, "eval_entropy": 8.0},
        {"eval_loss": 2.0, "eval_entropy": 1.0, "epoch": 3},
        {"loss": 1},
    ]
    run.state.global_step, feature, metrics = 7, EvaluationFigures(), {"eval_loss": 2.0}
    feature.after_evaluate(run, metrics, "eval")
    assert metrics == {"eval_loss": 2.0, "eval_entropy": 1.0, "eval_perplexity": math.exp(2)}
    assert feature.last == (7, metrics)


@pytest.mark.parametrize(
    ("step", "load_best", "best", "counts"),
    [
        (7, False, None, True),
        (8, False, None, False),
        (7, True, 7, True),
        (7, True, None, True),
        (7, True, 0, True),
        (7, True, 3, False),
        (7, False, 3, True),
    ],
)
def test_whether_it_measured_the_weights_that_are_there(
    run: Any, step: int, load_best: bool, best: int | None, counts: bool
) -> None:
    feature = EvaluationFigures()
    assert feature.current(run) is None, "there was none"
    run.state.global_step, run.state.log_history = 7, []
    feature.after_evaluate(run, {"eval_loss": 2.0}, "eval")
    run.state.global_step, run.state.best_global_step, run.args.load_best_model_at_end = step, best, load_best
    found = feature.current(run)
    assert (found is not None) == counts and (found or {"eval_loss": 2.0})["eval_loss"] == 2.0


def test_a_loss_that_is_no_mean_over_tokens_has_no_perplexity(run: Any) -> None:
    run.reports_perplexity, metrics = False, {"eval_loss": 2.0}
    EvaluationFigures().after_evaluate(run, metrics, "eval")
    assert metrics == {"eval_loss": 2.0}


def test_perplexity_of_a_loss_that_has_diverged() -> None:
    assert perplexity(math.log(12.0)) == pytest.approx(12.0)
    assert perplexity(1e4) == math.inf
