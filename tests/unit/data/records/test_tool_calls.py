"""Functions that a record offers."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.records.conversations import to_conversation
from tests.unit.data.helpers import row
from tests.unit.data.records.values import HG, TOOL


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([TOOL], [{"type": "function", "function": TOOL}]),
        ('[{"name": "f"}]', [{"type": "function", "function": {"name": "f"}}]),
        ([{"type": "function", "function": TOOL}], [{"type": "function", "function": TOOL}]),
        ("", None),
        ("[]", None),
        ([], None),
        (None, None),
    ],
)
def test_tools(tools: Any, expected: Any) -> None:
    assert to_conversation(row(conversations=HG, tools=tools)).tools == expected
