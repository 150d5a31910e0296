"""The part of the slow tests that CI runs: all of them in ten days, each day in an order of its own."""

from __future__ import annotations

import pytest

from tests import tenth

TESTS = [f"tests/a.py::test_{number}" for number in range(400)]


def test_ten_days_have_all_tests_each_once() -> None:
    days = [tenth.chosen(TESTS, number) for number in range(20_000, 20_010)]
    assert sorted(test for day in days for test in day) == sorted(TESTS)
    assert all(20 < len(day) < 60 for day in days)


def test_the_order_is_another_one_in_ten_days() -> None:
    now, later = tenth.chosen(TESTS, 20_000), tenth.chosen(TESTS, 20_010)
    assert now == tenth.chosen(list(reversed(TESTS)), 20_000) and now != later and sorted(now) == sorted(later)


def test_another_day_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_TENTH", "7")
    assert tenth.day() == 7
    monkeypatch.delenv("HFTUNE_TENTH")
    monkeypatch.setattr(tenth.time, "time", lambda: 86400 * 3 + 5.0)
    assert tenth.day() == 3
