"""Sources in packed rows: cached under their settings, counted as packed."""

from __future__ import annotations

from pathlib import Path

from hftune.arguments.data import DataArguments
from hftune.data.counts import Counts
from hftune.data.packing.settings import Packing
from hftune.data.packing.sources import limit_packed_rows, packed_source
from hftune.data.sources import TokenizedSource
from tests.unit.data.helpers import to_dataset


def source(lengths: list[int], counts: Counts) -> TokenizedSource:
    ids = [[100 * number + place for place in range(length)] for number, length in enumerate(lengths)]
    return TokenizedSource(to_dataset({"input_ids": ids, "labels": ids}), counts, ["a.jsonl"], "key")


def test_packing_is_cached_under_its_settings(tmp_path: Path) -> None:
    args = DataArguments(data_cache_dir=str(tmp_path))
    records = source([3, 4], Counts(rows=3, used=2, dropped={"x": 1}, tokens=7, trained_tokens=5))
    packed = packed_source(records, Packing(5, "wrapped"), args)
    changed = packed.counts
    assert changed.packing is not None
    assert (packed.files, packed.key) == (records.files, records.key)
    assert (changed.rows, changed.used, changed.dropped) == (3, 2, {"x": 1})
    assert (changed.tokens, changed.trained_tokens) == (7, 4)
    assert (changed.packing["strategy"], changed.packing["packs"], changed.packing["fill"]) == ("wrapped", 2, 0.7)
    # From the cache: nothing is read of what is given.
    again = packed_source(source([1], Counts()), Packing(5, "wrapped"), args)
    assert again.dataset.to_dict() == packed.dataset.to_dict() and again.counts == changed
    assert list(tmp_path.iterdir()), "in the folder that is asked for"
    for other in (Packing(6, "wrapped"), Packing(5, "bfd"), Packing(5, "wrapped", cross_document_attention=True)):
        assert packed_source(records, other, args).dataset.to_dict() != packed.dataset.to_dict()
    # Made again where that is asked for.
    before, args = packed.dataset.to_dict(), DataArguments(data_cache_dir=str(tmp_path), overwrite_cache=True)
    assert packed_source(source([1, 4], Counts()), Packing(5, "wrapped"), args).dataset.to_dict() != before


def test_the_first_rows_are_counted_for_themselves(tmp_path: Path) -> None:
    """Rows of 5, 4 and 4 tokens, of which the first of each is not trained, in a room of 6 each."""
    packed = packed_source(source([5, 4, 4], Counts()), Packing(6), DataArguments(data_cache_dir=str(tmp_path)))
    assert limit_packed_rows(packed, 4) is packed and limit_packed_rows(packed, 3) is packed
    first = limit_packed_rows(packed, 2)
    assert len(first.dataset) == 2 and first.key != packed.key
    assert (first.counts.tokens, first.counts.trained_tokens) == (9, 7)
    assert first.counts.packing is not None and packed.counts.packing is not None
    assert set(first.counts.packing) == {*packed.counts.packing, "of"}
    assert {name: first.counts.packing[name] for name in ("packs", "of", "fill", "tokens", "trained_tokens")} == {
        **{"packs": 2, "of": 3, "fill": 0.75, "tokens": 9, "trained_tokens": 7}
    }
