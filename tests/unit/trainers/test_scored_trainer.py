"""The scale of a reward model's scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from hftune.checkpoints.reward_scale import FIELD
from hftune.trainers.scored_trainer import ScoreScale, longest_first
from tests.unit.trainers.features import made_up


def trained(feature: ScoreScale, scores: list[float], *, held_out: bool = True, **args: Any) -> Any:
    """A run whose evaluations and predictions find these scores."""
    records = Dataset.from_dict({"length": [3, 9, 5]})
    run = made_up.run(
        args={"normalize_scores": True} | args,
        model=SimpleNamespace(config=SimpleNamespace(**{FIELD: "the base's"})),
        eval_dataset=records if held_out else None,
        train_dataset=records,
        asked=[],
        current_evaluation=None,
    )

    def measure(*given: Any, metric_key_prefix: str = "eval") -> dict[str, float]:
        run.asked.append(metric_key_prefix)
        feature.begin_evaluation(run, metric_key_prefix)
        feature.all_scores, feature.report, feature.whole_loss = np.array(scores), {"pairs": 2}, 0.25
        metrics = {f"{metric_key_prefix}_loss": 9.0}
        feature.end_evaluation(metrics, metric_key_prefix)
        return metrics

    run.evaluate = run.predict = measure
    return run


def test_longest_first_with_their_places() -> None:
    found = longest_first(Dataset.from_dict({"length": [3, 9, 5, 9]}))
    assert found["length"][:] == [9, 9, 5, 3] and found["index"][:] == [0, 1, 2, 3]


def test_held_out_scores_give_the_scale_and_are_measured_once() -> None:
    feature = ScoreScale(lambda: "lines")
    run = trained(feature, [1.0, 3.0])
    assert feature.known_evaluation(run) is None
    feature.measure(run)
    assert getattr(run.model.config, FIELD)["mean"] == 2.0
    assert feature.known_evaluation(run) == {"eval_loss": 0.25}, "over all records"
    assert feature.figures(run) == {"held_out": {"pairs": 2}, FIELD: getattr(run.model.config, FIELD)}
    run.state.global_step += 1
    assert feature.known_evaluation(run) is None, "of another step"


def test_an_evaluation_of_these_weights_is_not_made_again() -> None:
    feature = ScoreScale(lambda: "lines")
    run = trained(feature, [1.0, 3.0])
    run.current_evaluation = run.evaluate()
    feature.measure(run)
    assert run.asked == ["eval"] and feature.known_evaluation(run) == {"eval_loss": 0.25}
    assert getattr(run.model.config, FIELD)["mean"] == 2.0


def test_training_records_where_none_are_held_out() -> None:
    feature = ScoreScale(lambda: "lines")
    run = trained(feature, [1.0, 3.0], held_out=False)
    feature.measure(run)
    assert run.asked == ["train"] and feature.scored["length"][:] == [9, 5, 3]
    assert "held_out" not in feature.figures(run)


@pytest.mark.parametrize(("scores", "args"), [([2.0, 2.0], {}), ([1.0, 3.0], {"normalize_scores": False})])
def test_without_a_scale_the_base_s_does_not_stay(scores: list[float], args: dict[str, Any]) -> None:
    feature = ScoreScale(lambda: "lines")
    run = trained(feature, scores, **args)
    feature.measure(run)
    assert not hasattr(run.model.config, FIELD) and feature.scale is None
