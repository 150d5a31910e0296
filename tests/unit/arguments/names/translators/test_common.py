"""What several translations share."""

from __future__ import annotations

import pytest

from hftune.arguments.names.row import each, mapped, number, shortest, switched
from hftune.errors import ArgumentError
from tests.unit.arguments.names.translators.questions import ask, translated


def test_numbers() -> None:
    assert number("x", "1e-3") == 0.001
    with pytest.raises(ArgumentError, match="--x many is not a number"):
        number("x", "many")
    assert [shortest(value) for value in (30.0, 0.5, -1.0)] == ["30", "0.5", "-1"]


def test_a_table_of_values() -> None:
    strict = mapped("to", {"a": "b c", "off": None}, "use a")
    assert translated(strict, ask("x=A")) == {"to": "b c"}
    assert translated(strict, ask("x=off")) == {}
    with pytest.raises(ArgumentError, match="--x z cannot be used: use a"):
        strict(ask("x=z"))
    assert translated(mapped("to", {"a": "b"}, ""), ask("x=Z")) == {"to": "Z"}, "as it was written"


@pytest.mark.parametrize(("written", "becomes"), [("x", "yes"), ("x=1", "yes"), ("x=False", "no"), ("x=off", "no")])
def test_a_switch(written: str, becomes: str) -> None:
    assert translated(switched("to", "yes", "no"), ask(written)) == {"to": becomes}
    assert translated(switched("to", None, None), ask(written)) == {}


def test_every_name_has_its_say() -> None:
    assert each(lambda name, question: [(name, ["1"])])(ask("x=2 y=3")).given == [("x", ["1"]), ("y", ["1"])]
