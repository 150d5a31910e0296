"""How hooks of several features are called."""

from __future__ import annotations

from typing import Any

from hftune.trainers.features.feature import Feature, Features

RUN: Any = None


class Noted(Feature):
    """Writes down when it is called."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def before_evaluate(self, run: Any) -> None:
        self.said.append(f"before {self.name}")

    def after_evaluate(self, run: Any, metrics: dict[str, float], prefix: str) -> None:
        self.said.append(f"after {self.name}")


def test_features_are_wrapped_around_each_other() -> None:
    said: list[str] = []
    features = Features([Noted("a", said), Feature(), Noted("b", said)])
    features.call(Feature.before_evaluate, RUN)
    features.call(Feature.after_evaluate, RUN, {}, "eval")
    assert said == ["before a", "before b", "after b", "after a"]
    assert features.having(Feature.before_train) == (), "those that do nothing are not called"
