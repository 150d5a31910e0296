"""Mean and deviation of scores: measured, stored, read from where they belong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.checkpoints.reward_scale import FIELD, RewardScale, read_scale, scale_of
from hftune.constants import MANIFEST_NAME
from hftune.errors import ManifestError


def test_measured_over_the_population() -> None:
    scale = scale_of([1.0, 3.0, 5.0, 7.0], "held-out records")
    assert scale is not None and (scale.mean, scale.std, scale.scores) == (4.0, 5**0.5, 4)
    assert scale.normalise(4.0 + 5**0.5) == pytest.approx(1.0)


@pytest.mark.parametrize("scores", [[], [2.0, 2.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_scores_without_a_scale(scores: list[float]) -> None:
    assert scale_of(scores, "training records") is None


def test_read_from_the_manifest_or_from_the_config_of_a_whole_model(tmp_path: Path) -> None:
    one, other = (RewardScale(mean, 2.0, 9, "held-out records") for mean in (0.5, 1.5))
    assert read_scale(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({FIELD: one.to_dict()}))
    assert read_scale(tmp_path) == one
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({FIELD: other.to_dict()}))
    assert read_scale(tmp_path) == other
    # The config next to an adapter is that of its base, which may have been a reward model before.
    (tmp_path / MANIFEST_NAME).write_text("{}")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert read_scale(tmp_path) is None


def test_a_damaged_scale_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({FIELD: {"mean": 1.0}}))
    with pytest.raises(ManifestError, match="the reward scale stored in"):
        read_scale(tmp_path)
