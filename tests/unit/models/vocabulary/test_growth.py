"""The record of a growth in a manifest."""

from __future__ import annotations

import json

import pytest

from hftune.errors import ManifestError
from hftune.models.vocabulary import Growth, new_tokens, recorded_growth, spans

GROWN = Growth(base_rows=4, rows=6, ids=[3, 4])


def test_a_record_gives_the_growth_again() -> None:
    record = json.loads(json.dumps(GROWN.to_json()))
    assert record == {"base_rows": 4, "rows": 6, "ids": [[3, 4]]}
    assert Growth.from_json(record) == GROWN
    manifest = {"kind": "adapter", "vocabulary": {"growth": record, "new_tokens": [[3, 4]]}}
    assert recorded_growth(manifest) == GROWN and new_tokens(manifest) == [3, 4]
    # A whole model has its rows already.
    assert recorded_growth({**manifest, "kind": "full"}) is None and new_tokens(None) == []


def test_runs_of_ids() -> None:
    assert spans([5, 6, 7, 9]) == [[5, 7], [9, 9]] and spans([]) == []
    assert new_tokens({"vocabulary": {"new_tokens": [[5, 7], [9, 9]]}}) == [5, 6, 7, 9]


@pytest.mark.parametrize("damaged", [[[0, 10**10]], [[3, 2]], [[1, "a"]], [7]])
def test_a_record_from_anywhere_does_not_fill_the_memory(damaged: list[object]) -> None:
    with pytest.raises(ManifestError, match=r"vocabulary\.new_tokens is not as hftune writes it"):
        new_tokens({"vocabulary": {"new_tokens": damaged}})
