"""How hooks of several features are called."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.trainers.features.feature import Feature, Features


class Answers(Feature):
    """Answers some hooks with what it was made with, and counts how often it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, 0

    def trained_tokens(self, run: Any) -> Any:
        self.asked += 1
        return self.answer

    def figures(self, run: Any) -> dict[str, Any]:
        return {"answer": self.answer, str(self.answer): True}


class Other(Feature):
    """Has no hook."""


RUN: Any = None


def test_the_first_answer_ends_the_asking() -> None:
    silent, zero, last = Answers(None), Answers(0), Answers(7)
    features = Features([Other(), silent, zero, last])
    assert features.first_answer(Feature.trained_tokens, RUN) == 0
    assert (silent.asked, zero.asked, last.asked) == (1, 1, 0)
    assert Features([silent]).first_answer(Feature.trained_tokens, RUN) is None


def test_later_figures_win() -> None:
    assert Features([Answers(1), Answers(2)]).merged(Feature.figures, RUN) == {"answer": 2, "1": True, "2": True}


def test_one_of_a_class() -> None:
    other = Other()
    assert Features([Answers(1), other]).one(Other) is other
    with pytest.raises(ValueError, match="unpack"):
        Features([Answers(1)]).one(Other)


def test_what_is_added_comes_behind_and_once() -> None:
    features = Features([Other()])
    assert features.having(Feature.trained_tokens) == ()
    features.add([Answers(1), Other()])
    features.add([Answers(2)])
    assert [type(one) for one in features.all] == [Other, Answers]
    assert features.first_answer(Feature.trained_tokens, RUN) == 1, "who has a hook is found anew"
