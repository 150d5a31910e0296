"""Packed rows: nothing lost or doubled, no target across documents, whatever the strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, Features, Sequence, Value, concatenate_datasets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.constants import IGNORE_INDEX
from hftune.data import packing as packing_module
from hftune.data.counts import Counts
from hftune.data.packing import (
    STRATEGIES,
    Bins,
    IntColumn,
    Packing,
    PackStats,
    Segments,
    best_fit_decreasing,
    cut_stream,
    packed_source,
    packing_by_split,
    select_packed_rows,
    whole_documents,
)
from hftune.data.sources import TokenizedSource, limit_sources
from hftune.errors import ArgumentError, DataError
from hftune.logging import notices
from tests.unit.data.helpers import pack, to_dataset

LENGTH = 8
DOCUMENTS = st.lists(st.integers(1, 20), min_size=1, max_size=25)
Row = dict[str, list[int]]


def documents(lengths: list[int], *, trained: bool = True) -> Dataset:
    """Token ids say where they are from: 100 times the document plus the place in it."""
    ids = [[100 * number + place for place in range(length)] for number, length in enumerate(lengths)]
    return to_dataset({"input_ids": ids, "labels": ids if trained else [[IGNORE_INDEX] * len(row) for row in ids]})


def segments(row: Row) -> list[list[tuple[int, int, int]]]:
    """(token, label, position) of each document's part of a row."""
    triples = list(zip(row["input_ids"], row["labels"], row["position_ids"], strict=True))
    parts, at = [], 0
    for length in row["seq_lengths"]:
        parts.append(triples[at : at + length])
        at += length
    assert at == len(triples)
    return parts


def lengths_for(strategy: str, lengths: list[int]) -> list[int]:
    """Documents that the strategy takes, with a token to train for sure."""
    return [2, *(min(length, LENGTH) if strategy == "bfd" else length for length in lengths)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=15)
@given(lengths=DOCUMENTS)
def test_rows_hold_documents_apart(strategy: str, lengths: list[int]) -> None:
    lengths = lengths_for(strategy, lengths)
    rows, stats = pack(documents(lengths), LENGTH, strategy)
    tokens: list[int] = []
    targets = 0
    for row in rows:
        assert 1 <= len(row["input_ids"]) <= LENGTH
        assert len(row["input_ids"]) == LENGTH or strategy != "wrapped" or row == rows[-1]
        for part in segments(row):
            ids, labels, positions = zip(*part, strict=True)
            # A run of one document, from its own place 0 on.
            assert [token - ids[0] for token in ids] == list(range(len(ids))) == list(positions)
            assert ids[0] // 100 == ids[-1] // 100
            assert labels == (IGNORE_INDEX, *ids[1:])
            tokens += ids
            targets += len(ids) - 1
            if strategy == "bfd":
                assert len(ids) == lengths[ids[0] // 100]
    everything = [100 * number + place for number, length in enumerate(lengths) for place in range(length)]
    left_out = sorted(set(everything) - set(tokens))
    assert len(tokens) == len(set(tokens)) and len(left_out) == stats.untrained_tokens
    assert stats.packs == len(rows)
    assert stats.documents == len(lengths)
    assert (stats.tokens, stats.trained_tokens) == (len(tokens), targets)
    assert stats.fill == len(tokens) / (len(rows) * LENGTH)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(deadline=None, max_examples=8)
@given(lengths=DOCUMENTS, at_once=st.integers(1, 60))
def test_the_same_whatever_is_held_in_memory(strategy: str, lengths: list[int], at_once: int) -> None:
    dataset = documents(lengths_for(strategy, lengths))
    expected = pack(dataset, LENGTH, strategy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_module, "TOKENS_AT_ONCE", at_once)
        again = pack(dataset, LENGTH, strategy)
    assert again[0].to_dict() == expected[0].to_dict()
    assert again[1] == expected[1]


def test_what_is_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most ten tokens at once, or one row that is longer."""
    monkeypatch.setattr(packing_module, "TOKENS_AT_ONCE", 10)
    lengths = np.array([4, 5, 1, 1, 12, 3, 7, 10, 1])
    plain, whole = np.zeros_like(lengths), np.arange(len(lengths))
    bins = Bins(whole, np.array([0, 1, 3, 4, 5, 6, 7, 8, 9]))  # the second row is of two documents
    found = [*packing_module._portions(Segments(whole, plain, lengths), bins)]
    assert found == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7), (7, 8)]


def test_rows_by_hand() -> None:
    rows, stats = pack(documents([3, 5, 4, 1]), 6, "bfd")
    assert rows.to_dict() == {
        "input_ids": [[0, 1, 2], [100, 101, 102, 103, 104, 300], [200, 201, 202, 203]],
        "labels": [[-100, 1, 2], [-100, 101, 102, 103, 104, -100], [-100, 201, 202, 203]],
        "position_ids": [[0, 1, 2], [0, 1, 2, 3, 4, 0], [0, 1, 2, 3]],
        "seq_lengths": [[3], [5, 1], [4]],
    }
    assert {feature.feature.dtype for feature in rows.features.values()} == {"int32"}
    assert stats.to_dict() == {
        "max_length": 6, "packs": 3, "documents": 4, "split_documents": 0, "tokens": 13, "trained_tokens": 9,
        "untrained_tokens": 0, "fill": 0.7222,
    }  # fmt: skip


def test_pieces_of_a_document_do_not_see_each_other() -> None:
    rows, stats = pack(documents([3, 4]), 5, "wrapped")
    assert rows["input_ids"][:] == [[0, 1, 2, 100, 101], [102, 103]]
    assert rows["labels"][:] == [[-100, 1, 2, -100, 101], [-100, 103]]
    assert rows["seq_lengths"][:] == [[3, 2], [2]]
    assert stats.split_documents == 1


def test_documents_may_see_each_other_where_asked() -> None:
    rows, _ = pack(documents([3, 4]), 5, "wrapped", cross_document_attention=True)
    assert rows["labels"][:] == [[-100, 1, 2, 100, 101], [-100, 103]]
    assert rows["position_ids"][:] == [[0, 1, 2, 3, 4], [0, 1]]
    assert rows["seq_lengths"][:] == [[5], [2]]


def test_rows_without_a_target_are_left_out_and_counted() -> None:
    rows, stats = pack(documents([5, 1]), 5, "bfd")
    assert rows["input_ids"][:] == [[0, 1, 2, 3, 4]]
    assert (stats.packs, stats.tokens, stats.untrained_tokens) == (1, 5, 1)
    with pytest.raises(DataError, match="no token to train"):
        pack(documents([5], trained=False), 5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_no_documents_there_are_no_rows(strategy: str) -> None:
    segments, bins = packing_module.plan(np.zeros(0, dtype=np.int64), 5, strategy)
    assert len(segments.length) == 0 and bins.offsets.tolist() == [0]
    with pytest.raises(DataError, match="no token to train"):
        pack(documents([]), 5, strategy)


def test_an_overlong_document_is_split_only_where_asked() -> None:
    with pytest.raises(DataError, match="a document of 6 tokens does not fit into rows of 5") as caught:
        pack(documents([2, 6]), 5, "bfd")
    assert "bfd_split" in str(caught.value)
    rows, stats = pack(documents([2, 6]), 5, "bfd_split")
    assert sorted(length for row in rows["seq_lengths"][:] for length in row) == [1, 2, 5]
    assert stats.split_documents == 1


def test_selections_and_files_of_several_batches(tmp_path: Path) -> None:
    """Arrow's buffers hold more than a selection shows, and a file's rows lie in several of them."""
    dataset = documents([3, 5, 4, 2, 2, 1])
    dataset.save_to_disk(tmp_path / "d", num_shards=3)
    chunked = Dataset.load_from_disk(str(tmp_path / "d"))
    assert len(chunked.data.column("input_ids").chunks) == 3
    assert pack(chunked, 6)[0].to_dict() == pack(dataset, 6)[0].to_dict()
    chosen = pack(chunked.select([4, 1, 2]), 6)[0]
    assert chosen["input_ids"][:] == [[400, 401, 200, 201, 202, 203], [100, 101, 102, 103, 104]]
    sliced = pack(dataset.select(range(1, 3)), 6)[0]
    assert sliced["input_ids"][:] == [[100, 101, 102, 103, 104], [200, 201, 202, 203]]


def test_segments_of_several_chunks() -> None:
    parts = [to_dataset({"input_ids": ids}) for ids in ([[1, 2, 3], []], [[4, 5], [6, 7, 8, 9]])]
    column = IntColumn(concatenate_datasets(parts), "input_ids")
    assert column.lengths.tolist() == [3, 0, 2, 4]
    found = column.gather(np.array([3, 0, 2]), np.array([1, 0, 1]), np.array([2, 3, 1]))
    assert found.tolist() == [7, 8, 1, 2, 3, 5] and found.dtype == np.int32


def test_a_slice_of_a_file_begins_where_it_begins() -> None:
    """Arrow's offsets of a slice do not begin at 0."""
    table = to_dataset({"input_ids": [[1, 2], [3], [4, 5, 6]]}).data.table.slice(1, 2)
    column = IntColumn(type(to_dataset({}))(table), "input_ids")
    assert column.lengths.tolist() == [1, 3]
    assert column.gather(np.array([0, 1]), np.array([0, 1]), np.array([1, 2])).tolist() == [3, 5, 6]


def test_values_keep_their_type() -> None:
    """What is gathered is not widened, nor cut."""
    long = 2**40
    column = IntColumn(Dataset.from_dict({"n": [[long], [2]]}, Features({"n": Sequence(Value("int64"))})), "n")
    found = column.gather(np.array([1, 0]), np.array([0, 0]), np.array([1, 1]))
    assert found.tolist() == [2, long] and found.dtype == np.int64


def test_a_column_of_nothing() -> None:
    empty = np.zeros(0, dtype=np.int64)
    table = to_dataset({"input_ids": [[1]]}).data.table
    no_chunks = type(to_dataset({}))(pa.table({"input_ids": pa.chunked_array([], table.schema.field(0).type)}))
    assert not no_chunks.data.column("input_ids").chunks
    for dataset in (to_dataset({"input_ids": [[1]]}).select([]), no_chunks):
        column = IntColumn(dataset, "input_ids")
        for found in (column.lengths, column.begin, column.chunk):
            assert found.tolist() == [] and found.dtype == np.int64, "with which one can count"
        assert column.gather(empty, empty, empty).dtype == np.int32


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
    assert limit_sources([packed], 3, select=select_packed_rows)[0] is packed
    (first,) = limit_sources([packed], 2, select=select_packed_rows)
    assert len(first.dataset) == 2 and first.key != packed.key
    assert (first.counts.tokens, first.counts.trained_tokens) == (9, 7)
    assert first.counts.packing is not None and packed.counts.packing is not None
    assert set(first.counts.packing) == {*packed.counts.packing, "of"}
    assert {name: first.counts.packing[name] for name in ("packs", "of", "fill", "tokens", "trained_tokens")} == {
        **{"packs": 2, "of": 3, "fill": 0.75, "tokens": 9, "trained_tokens": 7}
    }


@pytest.mark.parametrize(
    ("stage", "flags", "train", "evaluation"),
    [
        ("sft", [], None, None),
        ("sft", ["--packing"], Packing(1024), Packing(1024)),
        ("sft", ["--greedy_intokens", "True", "--eval_packing", "False"], Packing(1024), None),
        ("sft", ["--eval_packing", "True", "--max_length", "9"], None, Packing(9)),
        ("sft", ["--packing", "--packing_strategy", "bfd_split"], Packing(1024, "bfd_split", False), ...),
        ("pt", [], Packing(1024, "wrapped", False), ...),
        ("pt", ["--packing", "False"], None, None),
        ("pt", ["--cross_document_attention", "True"], Packing(1024, "wrapped", True), ...),
    ],
)
def test_what_arguments_ask_for(stage: str, flags: list[str], train: Packing | None, evaluation: Any) -> None:
    *_, args = parse_arguments(stage, [*flags, "--output_dir", "o"])
    chosen = packing_by_split(args, "max_length" if stage == "sft" else "block_size")
    assert chosen.get("train") == train
    assert chosen.get("eval") == (train if evaluation is ... else evaluation)


def test_what_is_cut_while_packing_is_not_truncated_before() -> None:
    assert [Packing(9, strategy).cuts for strategy in ("bfd", "bfd_split", "wrapped")] == [False, True, True]


def test_rows_need_a_length() -> None:
    *_, args = parse_arguments("sft", ["--packing", "--output_dir", "o"])
    args.max_length = None
    with pytest.raises(ArgumentError, match="how long rows are"):
        packing_by_split(args, "max_length")


def test_no_padding_of_packed_rows_is_said() -> None:
    said = "--padding_free has no effect: packed rows have no padding"
    for flags, expected in ((["--padding_free"], 0), (["--padding_free", "--packing"], 1)):
        *_, args = parse_arguments("sft", [*flags, "--output_dir", "o"])
        packing_by_split(args, "max_length")
        assert notices().count(said) == expected


def test_what_nobody_asks_for_is_off() -> None:
    assert Packing(9) == Packing(9, "bfd", cross_document_attention=False)
    empty = PackStats(9).to_dict()
    assert empty.pop("max_length") == 9 and not any(empty.values())


def as_lists(bins: Bins) -> list[list[int]]:
    return [part.tolist() for part in np.split(bins.segments, bins.offsets[1:-1])] if len(bins.offsets) > 1 else []


def test_best_fit_by_hand() -> None:
    # 8 opens a bin (room 2), 7 another (3), 3 fills the second, 2 the first, the last 2 opens a third.
    bins = best_fit_decreasing(np.array([2, 7, 2, 8, 3]), 10)
    assert as_lists(bins) == [[0, 3], [1, 4], [2]]


def test_ties_stay_in_their_order() -> None:
    """Each 5 meets the next 4, however many there are."""
    bins = best_fit_decreasing(np.array([5, 4] * 50), 9)
    assert as_lists(bins) == [[2 * number, 2 * number + 1] for number in range(50)]


def test_a_length_above_the_capacity_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="from 1 to capacity"):
        best_fit_decreasing(np.array([11]), 10)


def test_a_stream_by_hand() -> None:
    segments, bins = cut_stream(np.array([3, 0, 6, 1]), 4)
    # |aaa c|cccc|c d|: document c is cut twice.
    assert segments.document.tolist() == [0, 2, 2, 2, 3]
    assert segments.start.tolist() == [0, 0, 1, 5, 0]
    assert segments.length.tolist() == [3, 1, 4, 1, 1]
    assert as_lists(bins) == [[0, 1], [2], [3, 4]]


def test_empty_documents_are_no_pieces() -> None:
    segments = whole_documents(np.array([2, 0, 1]))
    assert (segments.document.tolist(), segments.length.tolist()) == ([0, 2], [2, 1])
