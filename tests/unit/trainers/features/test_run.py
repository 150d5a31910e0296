"""What a run says of its own loss when it ends."""

from __future__ import annotations

import math

import pytest

from hftune.logging import notices
from hftune.trainers.features.run import say_if_nothing_learnt
from tests.unit.trainers.features import made_up


def said(losses: list[float], chance: float = math.inf) -> str:
    """What is said of a run with these logs, between which evaluations lie."""
    run = made_up.run()
    run.state.log_history = [entry for loss in losses for entry in ({"loss": loss}, {"eval_loss": 99.0})]
    before = len(notices())
    say_if_nothing_learnt(run, chance)
    return " ".join(notices()[before:])


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([], ""),
        ([3.25], ""),
        ([3.0, 4.0, 2.9], ""),
        ([3.0, 2.0, 3.125], "ended at 3.125, above the 3 that it began with"),
        ([2.0] + [3.0] * 18 + [2.0], ""),
        ([1.0, 4.0] + [2.0] * 16 + [9.0, 1.0], "ended at 5, above the 2.5 that it began with"),
    ],
)
def test_a_loss_that_has_not_fallen(losses: list[float], words: str) -> None:
    """Of many logs the first tenth and the last: batches differ."""
    found = said(losses)
    assert (words in found and "--learning_rate" in found) if words else found == ""


def test_a_loss_that_is_that_of_a_guess() -> None:
    assert said([9.0, math.log(50)], math.log(49)).startswith("the training loss ended at 3.912, and 3.892 is that of")
    assert said([9.0, math.log(40)], math.log(49)) == ""
