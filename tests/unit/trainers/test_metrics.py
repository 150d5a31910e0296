"""The local `evaluate` modules against numbers worked by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from transformers import EvalPrediction

from hftune.trainers import metrics
from hftune.trainers.held_out import pair_figures
from hftune.trainers.metrics import METRICS, load_metric
from hftune.trainers.pt import token_accuracy


def test_token_accuracy_leaves_out_what_is_not_trained() -> None:
    metric = load_metric("token_accuracy")
    assert metric.compute(predictions=[1, 2, 3, 4], references=[1, -100, 3, 5]) == {
        "token_accuracy": pytest.approx(2 / 3)
    }
    assert math.isnan(metric.compute(predictions=[1], references=[-100])["token_accuracy"])


def test_a_position_predicts_the_next_token() -> None:
    predicted = np.array([[5, 6, 7, 0]])  # position 0 says 5, position 1 says 6, ...
    labels = np.array([[1, 5, 6, 9]])  # what comes after them: 5, 6, 9
    assert token_accuracy(EvalPrediction(predicted, labels)) == {"token_accuracy": pytest.approx(2 / 3)}


def test_perplexity_weighs_by_tokens() -> None:
    result = load_metric("perplexity").compute(predictions=[1.0, 3.0], references=[3.0, 1.0])
    assert result["perplexity"] == pytest.approx(math.exp(1.5))
    assert load_metric("perplexity").compute(predictions=[1e4], references=[1.0])["perplexity"] == math.inf


def test_pairs() -> None:
    scores = np.array([[2.0, 1.0], [0.0, 0.5], [1.0, 1.0], [3.0, 0.0]])  # right, wrong, a tie, right
    figures = pair_figures(scores)
    assert figures["accuracy"] == 0.5 and figures["margin"] == pytest.approx(0.875)


def test_calibration() -> None:
    metric = load_metric("calibration_error")
    # Sure by 0.9 four times and right three times: |0.75 - 0.9|, in whichever direction the outcomes lie.
    result = metric.compute(predictions=[0.9, 0.9, 0.1, 0.1], references=[1, 1, 0, 1], bins=10)
    assert result["ece"] == pytest.approx(0.15)
    # Two bins: (|1 - 0.95| + |0 - 0.6|) / 2; one bin: |0.5 - 0.775|.
    for bins, expected in ((10, 0.325), (1, 0.275)):
        result = metric.compute(predictions=[0.95, 0.6], references=[1, 0], bins=bins)
        assert result["ece"] == pytest.approx(expected)
    assert metric.compute(predictions=[1.0, 0.5], references=[1, 0], bins=10)["ece"] == 0.0


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_imported_from_the_package_alone(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No module is copied to a cache and run from there, and none is looked for by its path."""

    def refuse(*args: object, **given: object) -> None:
        raise AssertionError("loaded by path")

    monkeypatch.setattr("evaluate.load", refuse)
    monkeypatch.setattr("evaluate.loading.evaluation_module_factory", refuse)
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path / "metrics"))
    monkeypatch.setattr("evaluate.config.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / f"{name}.py").write_text("raise SystemExit('run from the working folder')\n")
    metric = load_metric(name)
    assert type(metric).__module__ == f"hftune.trainers.metrics.{name}"
    assert metric.compute(predictions=[1, 0], references=[1, 1])
    written = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert written == [f"{name}.py"], "no copy of code, and no scores on disk"


def test_every_metric_is_named() -> None:
    files = Path(metrics.__file__).parent.glob("*.py")
    assert {file.stem for file in files} - {"__init__"} == {*METRICS}
