"""A record's hash tells its content, and nothing of where it is."""

from __future__ import annotations

import numpy as np

from hftune.constants import IGNORE_INDEX
from hftune.data.teacher_targets import hashes_of, records, trained_places
from tests.unit.data.helpers import to_dataset

ROWS = {
    "input_ids": [[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 3], [], [1, 2]],
    "labels": [[-100, 2, 3], [4, 5], [-100, 2, 3], [-100, -100, 3], [], [-100, 2]],
}


def test_equal_records_have_one_hash_and_others_another() -> None:
    hashes, counts = hashes_of(to_dataset(ROWS))
    assert hashes.shape == (6, 2) and hashes.dtype == np.uint64
    # The label of a first token is not trained: nothing predicts it.
    assert counts.tolist() == [2, 1, 2, 1, 0, 1]
    names = [tuple(row) for row in hashes.tolist()]
    assert names[0] == names[2] and len(set(names)) == 5


def test_a_selection_in_another_order_has_the_same_hashes() -> None:
    dataset = to_dataset(ROWS)
    hashes, _ = hashes_of(dataset)
    order = [5, 0, 3]
    found, counts = hashes_of(dataset.select(order))
    np.testing.assert_array_equal(found, hashes[order])
    assert counts.tolist() == [1, 2, 1]


def test_records_are_read_as_they_are_over_several_portions() -> None:
    lengths = [1 + number % 5 for number in range(2500)]
    dataset = to_dataset({name: [[number] * length for number, length in enumerate(lengths)] for name in ROWS})
    found = list(records(dataset.select(range(3, 2500))))
    assert len(found) == 2497
    for number, (ids, trained) in enumerate(found, start=3):
        assert ids.tolist() == [number] * lengths[number] and int(trained.sum()) == lengths[number] - 1


def test_trained_places() -> None:
    labels = np.array([3, IGNORE_INDEX, 5, IGNORE_INDEX])
    assert trained_places(labels).tolist() == [False, False, True, False]
    assert labels.tolist() == [3, IGNORE_INDEX, 5, IGNORE_INDEX]
