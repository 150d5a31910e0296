"""Workers keep the order, the errors and the memory."""

from __future__ import annotations

import os

import pytest

from hftune.data import encoder
from hftune.errors import DataError


def _where(item: int) -> tuple[int, int]:
    if item == 50:
        raise DataError("fifty", place="here:50", fix="Nothing.", kind="fifty")
    return item, os.getpid()


def test_workers_keep_order_and_read_no_more_than_they_need() -> None:
    read = []

    def items() -> object:
        for number in range(50):
            read.append(number)
            yield number

    found = []
    for number, process in encoder.map_in_order(_where, items(), 2):
        found.append(number)
        assert process != os.getpid()
        assert len(read) <= len(found) + encoder.WORTH_WORKERS + 2 * encoder.AHEAD
    assert found == list(range(50))


def test_errors_keep_their_place_on_the_way_from_a_worker() -> None:
    seen = []
    with pytest.raises(DataError) as caught:
        for number, _ in encoder.map_in_order(_where, iter(range(60)), 2):
            seen.append(number)
    assert seen == list(range(50))
    assert (caught.value.place, caught.value.fix, caught.value.kind) == ("here:50", "Nothing.", "fifty")
