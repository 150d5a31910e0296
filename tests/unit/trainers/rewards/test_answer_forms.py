"""One spelling of answers, and numbers with their units."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hftune.trainers.rewards.answer_forms import Quantity, quantity, spelled


@pytest.mark.parametrize(
    ("text", "one"),
    [
        (r"$\dfrac12$.", r"\frac{1}{2}"),
        (r"\left( 1,\, 2 \right)", "( 1,  2  )"),
        ("\u221a3", r"\sqrt{3}"),
        ("{1, 2}", r"\{1, 2\}"),
        ("(B)", "B"),
        ("x\u00b2", "x^2"),
        (r"\mathrm{cm}^{2}", "cm ^2"),
    ],
)
def test_one_spelling(text: str, one: str) -> None:
    assert spelled(text) == one


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5 1/2", Quantity(Fraction(11, 2), "")),
        ("-$1,234.50", Quantity(Fraction(-2469, 2), "$")),
        ("12.5%", Quantity(Fraction(25, 2), "%")),
        ("3 metres", Quantity(Fraction(3), "m")),
        ("3万", Quantity(Fraction(30000), "")),
        ("9.8 m/s^2", Quantity(Fraction(49, 5), "m/s^2")),
        # Not five metres and not two units of xy: products.
        ("5m", None),
        ("2xy", None),
        ("2 sin x", None),
        ("1/0", None),
        ("5 m + 2 s", None),
    ],
)
def test_numbers_with_units(text: str, found: Quantity | None) -> None:
    assert quantity(text) == found


def test_a_percentage_is_a_share() -> None:
    assert Quantity(Fraction(50), "%").share == Fraction(1, 2)
    assert Quantity(Fraction(50), "cm").share == 50
