"""Tokenised sources: what is held out of them."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from hftune.data.counts import Counts
from hftune.data.sources import TokenizedSource, hold_out, split_source


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


def source(begins: list[bool] | None, rows: int) -> TokenizedSource:
    columns: dict[str, list[Any]] = {"row": [*range(rows)], "length": [1] * rows}
    if begins is not None:
        columns["begins"] = begins
    return TokenizedSource(Dataset.from_dict(columns), Counts(rows=rows, used=rows), [], "key")


@pytest.mark.parametrize("seed", range(8))
def test_all_rows_of_a_record_are_on_one_side(seed: int) -> None:
    # Records of 3, 1, 2 and 2 rows.
    begins = [True, False, False, True, True, False, True, False]
    sides = split_source(source(begins, 8), 25.0, seed)
    rows = [[*side.dataset["row"]] for side in sides]
    assert sorted(rows[0] + rows[1]) == list(range(8)) and rows[0] == sorted(rows[0])
    assert rows[1] in ([0, 1, 2], [3], [4, 5], [6, 7])
    assert sides[1].counts.used == len(rows[1]) and sides[0].key != sides[1].key != "key"


def test_rows_are_records_where_nothing_else_is_known() -> None:
    for begins in (None, [True] * 4):
        train, held = split_source(source(begins, 4), 25.0, seed=1)
        assert [len(train.dataset), len(held.dataset)] == [3, 1]
        assert [*held.dataset["row"]] == hold_out(4, 25.0, 1)[1]


def test_rows_without_their_first_one_are_not_lost() -> None:
    train, held = split_source(source([False, True, False], 3), 50.0, seed=0)
    assert sorted([*train.dataset["row"], *held.dataset["row"]]) == [0, 1, 2]


def test_a_single_record_is_trained() -> None:
    train, held = split_source(source([True, False], 2), 50.0, seed=0)
    assert len(train.dataset) == 2 and len(held.dataset) == 0
