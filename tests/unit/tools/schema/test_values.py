"""Ranges and refused names as JSON Schema."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hftune.arguments.names.row import OFF, REFUSED, Row
from hftune.arguments.ranges import Range
from hftune.tools.schema.values import _numbers, any_of, harmless_schema, only_no

SAMPLE: tuple[Any, ...] = (-2, -1, 0, 0.25, 0.5, 1, 1.5, 2, 10, 100, 101, 1e7)


def takes(schema: dict[str, Any], value: Any) -> bool:
    return Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("number", text) for text in ("[0, 1]", "(0, 1]", "[0, 1)", "[-1e6, 1e6]", "steps [0, 100]", "(0, 1e30]")),
        *(("integer", text) for text in ("[1, 100]", "[1, 100] or -1", "[1, 10] or 0 or -1", "[4, 8]")),
        ("number", "steps [0, 100] or -1"),
    ],
)
def test_a_range_holds_what_its_schema_holds(kind: str, text: str) -> None:
    limits = Range.read(text)
    schema = any_of(_numbers(kind, limits))
    for value in SAMPLE:
        if kind == "number" or isinstance(value, int):
            assert takes(schema, value) == limits.holds(value), value


@pytest.mark.parametrize("harmless", [OFF, ("true",), ("1", "0.5"), ("adamw_torch", "none"), ()])
def test_a_refused_name_takes_what_asks_for_nothing(harmless: tuple[str, ...]) -> None:
    row = Row("x", "", REFUSED, harmless=harmless)
    schema = harmless_schema(row)
    for value in (True, False, 0, 1, 0.5, 2, "None", "off", "ON", "yes", "no", "", "1", "AdamW_torch", "else"):
        assert takes(schema, value) == row.asks_for_nothing([str(value)]), value
    assert takes(schema, None) and not takes(schema, [1]) and not takes(schema, {})


def test_only_no() -> None:
    assert [value for value in (False, 0, None, "None", "no", "0", True, 1, "yes", "") if takes(only_no(), value)] == [
        *(False, 0, None, "None", "no", "0")
    ]
