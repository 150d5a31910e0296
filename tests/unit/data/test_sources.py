"""Tokenised sources: what is held out of them."""

from __future__ import annotations

from hftune.data.sources import hold_out


def test_held_out_rows_are_drawn_by_the_seed_and_kept_in_order() -> None:
    train, held = hold_out(50, 10.0, seed=1)
    assert len(held) == 5 and len(train) == 45
    assert sorted(train + held) == list(range(50))
    assert held == sorted(held) and train == sorted(train)
    assert hold_out(50, 10.0, seed=1) == (train, held)
    assert hold_out(50, 10.0, seed=2) != (train, held)


def test_both_sides_keep_a_row() -> None:
    for percentage in (0.001, 99.9):
        train, held = hold_out(2, percentage, seed=0)
        assert len(train) == len(held) == 1
