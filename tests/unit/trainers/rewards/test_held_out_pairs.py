"""What a reward model's last evaluation says in lines."""

from __future__ import annotations

import numpy as np

from hftune.trainers.rewards.held_out_pairs import describe_pairs, pair_report

SCORES = np.array([[1.0, 0.0], [3.0, 1.0], [0.5, 2.5]])


def test_figures_of_one_source_are_said_once() -> None:
    first, *more = describe_pairs(pair_report(SCORES, ["a", "a", "a"])).splitlines()
    assert "accuracy 0.667, margin 0.333" in first and "3 pairs; scores from 0.00 to 3.00" in first
    assert [line.split("|")[0].split() for line in more] == [["chosen"], ["rejected"]]


def test_of_several_each_has_its_own() -> None:
    lines = describe_pairs(pair_report(SCORES, ["a", "b", "b"])).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["a", "chosen", "rejected", "b", "chosen", "rejected"]
    assert "1 pairs, accuracy 1.000, margin 1.000" in lines[1] and "2 pairs, accuracy 0.500, margin 0.000" in lines[4]
