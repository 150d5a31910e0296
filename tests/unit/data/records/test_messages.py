"""What a turn says of itself: its weight."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.records.conversations import to_conversation
from tests.unit.data.helpers import assistant, row, user

W = "weight"


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        ({"weight": 0.5}, 0.5),
        ({"weight": 0}, 0.0),
        ({"weight": 3}, 3.0),
        ({"loss_scale": 2.0}, 2.0),
        ({"train": False}, 0.0),
        ({"train": True}, 1.0),
        ({"loss": False}, 0.0),
        ({"loss": False, "weight": 0}, 0.0),
        ({"loss": None, "weight": None}, None),
    ],
)
def test_weights_of_turns(given: dict[str, Any], weight: float | None) -> None:
    value = [user("Q"), assistant("A", **given), user("R"), {**assistant("B"), "loss": True}]
    found = to_conversation(row(messages=value)).messages[1]
    assert found == (assistant("A") if weight is None else assistant("A", weight=weight))
    assert not isinstance(found.get(W), bool)
