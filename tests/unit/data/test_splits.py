"""Training and held-out rows of a run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset

from hftune import digests
from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.inputs import record_inputs
from hftune.data import sources
from hftune.data.counts import Counts
from hftune.data.encode import ChatEncoder
from hftune.data.encoder import IDS, Encoder
from hftune.data.files import Row
from hftune.data.mixture import Mixture
from hftune.data.sources import hold_out
from hftune.data.splits import (
    Splits,
    describe,
    describe_packing,
    load_data,
    load_splits,
    row_digests,
    say_shared_files,
    say_shared_records,
)
from hftune.errors import ArgumentError, DataError
from tests.conftest import CHATS
from tests.unit.data.helpers import make_tokenizer


class Numbers(Encoder):
    """One token a row: its number."""

    schema = pa.schema({"input_ids": IDS, "length": pa.int32(), "trained": pa.int32()})

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()

    @classmethod
    def from_arguments(cls, tokenizer: Any, args: Any) -> Numbers:
        return cls()

    def settings(self) -> dict[str, Any]:
        return {}

    def read(self, row: Row) -> int:
        if row.value["n"] < 0:
            raise DataError("negative", place=row.origin, kind="negative number")
        return int(row.value["n"])

    def encode(self, parsed: list[int], counts: Counts) -> dict[str, list[Any]]:
        counts.used += len(parsed)
        counts.tokens += len(parsed)
        counts.trained_tokens += sum(parsed)
        return {"input_ids": [np.array([n]) for n in parsed], "length": [1] * len(parsed), "trained": parsed}


def numbers_of(dataset: Dataset) -> list[int]:
    return [ids[0] for ids in dataset["input_ids"]]


def write(file: Path, numbers: range) -> str:
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))
    return str(file)


def asked(folder: Path, numbers: range, held_out: range | None = None, **given: Any) -> DataArguments:
    """Arguments with `train.jsonl` and `held.jsonl` of these numbers in a folder."""
    if held_out is not None:
        given["validation_file_dir"] = write(folder / "held.jsonl", held_out)
    train = write(folder / "train.jsonl", numbers)
    return DataArguments(train_file_dir=train, data_cache_dir=str(folder / "cache"), **given)


def loaded(arguments: DataArguments, seed: int = 0) -> Splits:
    training: Any = SimpleNamespace(seed=seed)
    return load_splits(Numbers(), arguments, training)


def test_folders_limits_and_cache(tmp_path: Path) -> None:
    arguments = asked(tmp_path, range(10), range(90, 99), max_train_samples=4, max_eval_samples=2)
    splits = loaded(arguments)
    assert numbers_of(splits.train) == [0, 1, 2, 3]
    assert splits.evaluation is not None and numbers_of(splits.evaluation) == [90, 91]
    assert splits.about["train"]["used"] == 4 and splits.about["train"]["files"] == [str(tmp_path / "train.jsonl")]
    arguments.max_train_samples = 5
    assert numbers_of(loaded(arguments).train) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("local_rank", [0, 1])
def test_records_are_read_for_their_key_once_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_rank: int
) -> None:
    """Once tokenised, a start reads them for the key and for the manifest's record of them, both in one reading."""
    file = write(tmp_path / "train.jsonl", range(10))
    arguments = DataArguments(train_file_dir=file, data_cache_dir=str(tmp_path / "cache"))
    loaded(arguments)
    read: list[Path] = []
    usual = digests.digest
    monkeypatch.setattr(digests, "digest", lambda file, **more: (read.append(file), usual(file, **more))[1])
    monkeypatch.setattr(digests, "_SETTLED", -1)
    monkeypatch.setattr(sources, "once_a_machine", lambda ask: ask() if local_rank == 0 else "the first one's")
    monkeypatch.setattr(
        sources, "cached_source", lambda key, *more: sources.TokenizedSource(Dataset.from_dict({}), Counts(), [], key)
    )
    found = sources.load_source(file, "--train_file_dir", Numbers(), arguments)
    assert (found.key == "the first one's") == (local_rank == 1)
    if local_rank == 0:
        record_inputs(["--train_file_dir", file])
    assert read.count(Path(file)) == (1 if local_rank == 0 else 0)


def taken_by_datasets(count: int, number: int, seed: int) -> list[int]:
    """The numbers that `Dataset.shuffle(seed).select(range(number))` takes, in their order in the files."""
    whole = Dataset.from_dict({"n": list(range(count))})
    return sorted(whole.shuffle(seed=seed).select(range(number))["n"])


@pytest.mark.parametrize("folder", [True, False])
def test_some_records_are_drawn_from_all_files(tmp_path: Path, folder: bool) -> None:
    """Of three files, as one folder or one by one; those that `datasets` would draw, not the first ones."""
    (tmp_path / "data").mkdir()
    files = [write(tmp_path / "data" / f"{at}.jsonl", range(100 * at, 100 * at + 100)) for at in range(3)]
    arguments = DataArguments(
        train_file_dir=str(tmp_path / "data") if folder else ",".join(files),
        max_train_samples=30,
        shuffle_seed=42,
        data_cache_dir=str(tmp_path / "cache"),
    )
    taken = numbers_of(loaded(arguments).train)
    assert taken == taken_by_datasets(300, 30, 42)
    assert {number // 100 for number in taken} == {0, 1, 2}
    arguments.shuffle_seed = 1
    assert numbers_of(loaded(arguments).train) == taken_by_datasets(300, 30, 1)
    arguments.shuffle_seed = None
    assert numbers_of(loaded(arguments).train) == list(range(30))
    arguments.shuffle_seed, arguments.max_train_samples = 42, 300
    assert numbers_of(loaded(arguments).train) == list(range(300))


def test_records_are_drawn_from_what_is_not_held_out(tmp_path: Path) -> None:
    arguments = asked(
        tmp_path, range(100), validation_split_percentage=10, max_train_samples=20, max_eval_samples=3, shuffle_seed=42
    )
    splits = loaded(arguments, seed=3)
    assert splits.evaluation is not None
    train, held = numbers_of(splits.train), numbers_of(splits.evaluation)
    left = [number for number in range(100) if number not in hold_out(100, 10, 3)[1]]
    assert train == [left[at] for at in taken_by_datasets(90, 20, 42)]
    assert held == hold_out(100, 10, 3)[1][:3]


def test_a_share_is_held_out_where_no_folder_is_given(tmp_path: Path) -> None:
    arguments = asked(tmp_path, range(10), validation_split_percentage=20)
    splits = loaded(arguments, seed=3)
    assert splits.evaluation is not None
    train, held = numbers_of(splits.train), numbers_of(splits.evaluation)
    assert len(held) == 2 and sorted(train + held) == list(range(10))
    # Each part is counted on its own.
    assert splits.about["eval"]["trained_tokens"] == sum(held) and splits.about["eval"]["used"] == 2
    assert splits.about["train"]["trained_tokens"] == sum(train) and splits.train.column_names == [
        "input_ids",
        "length",
    ]
    assert (splits.about["train"]["rows"], splits.about["eval"]["rows"]) == (8, 2)


def test_records_of_both_splits_are_read_once(tmp_path: Path) -> None:
    """What is dropped is counted with the training records, and no record twice."""
    (tmp_path / "train.jsonl").write_text('{"n": -1}\n' + "".join(f'{{"n": {n}}}\n' for n in range(1, 10)))
    arguments = DataArguments(
        train_file_dir=str(tmp_path / "train.jsonl"),
        data_cache_dir=str(tmp_path / "cache"),
        validation_split_percentage=33,
        on_bad_record="drop",
    )
    about = loaded(arguments).about
    assert (about["train"]["rows"], about["train"]["used"], about["train"]["dropped"]) == (7, 6, {"negative number": 1})
    assert (about["eval"]["rows"], about["eval"]["used"], about["eval"]["dropped"]) == (3, 3, {})


def test_counts_in_words() -> None:
    counts = Counts(rows=10, used=7, dropped={"too long": 3}, truncated=1, tokens=200, trained_tokens=50)
    said = describe(counts.to_dict())
    assert said == "10 records read, 7 used, 3 dropped (too long), 1 truncated, 200 tokens, 50 trained (25 %)"


class Documents(Numbers):
    """Two tokens a row, or one where there is a limit; packed into rows of `block_size`."""

    schema = pa.schema({"input_ids": IDS, "labels": IDS, "length": pa.int32(), "trained": pa.int32()})
    row_length = "block_size"

    def __init__(self, limit: int | None = 1) -> None:
        super().__init__()
        self.limit = limit

    def without_limit(self) -> Documents:
        return Documents(None)

    def settings(self) -> dict[str, Any]:
        return {"limit": self.limit}

    def encode(self, parsed: list[int], counts: Counts) -> dict[str, list[Any]]:
        counts.used += len(parsed)
        ids = [np.array([number, number + 1])[: self.limit] for number in parsed]
        lengths = [len(each) for each in ids]
        return {"input_ids": ids, "labels": ids, "length": lengths, "trained": lengths}


def test_each_split_is_packed_as_asked(tmp_path: Path) -> None:
    """What is packed by cutting is tokenised without a limit; the manifest says what came of it."""
    arguments = asked(tmp_path, range(5), range(3))
    *_, training = parse_arguments("pt", ["--output_dir", "o", "--block_size", "4", "--eval_packing", "False"])
    splits = load_splits(Documents(), arguments, training)
    assert splits.train["seq_lengths"][:] == [[2, 2], [2, 2], [2]]
    assert splits.evaluation is not None and splits.evaluation["input_ids"][:] == [[0], [1], [2]]
    assert splits.about["train"]["packing"]["packs"] == 3
    assert "packing" not in splits.about["eval"]
    again = load_splits(Documents(), arguments, training)
    assert again.train.to_dict() == splits.train.to_dict() and again.about == splits.about
    # Other settings, other rows.
    *_, training = parse_arguments("pt", ["--output_dir", "o", "--block_size", "4", "--packing", "False"])
    assert len(load_splits(Documents(), arguments, training).train) == 5


def test_rows_are_counted_in_place_of_records(tmp_path: Path) -> None:
    """Blocks as they are trained; records that would be too many blocks are all packed first."""
    arguments = asked(tmp_path, range(10), range(9), max_train_samples=2, max_eval_samples=1, count_rows=True)
    *_, training = parse_arguments("pt", ["--output_dir", "o", "--block_size", "4"])
    splits = load_splits(Documents(), arguments, training)
    assert splits.train["input_ids"][:] == [[0, 1, 1, 2], [2, 3, 3, 4]]
    assert splits.evaluation is not None and splits.evaluation["input_ids"][:] == [[0, 1, 1, 2]]
    about = splits.about["train"]
    assert (about["rows"], about["tokens"], about["trained_tokens"]) == (10, 8, 4)
    assert (about["packing"]["packs"], about["packing"]["of"], about["packing"]["fill"]) == (2, 5, 1.0)
    assert "packed (wrapped) into 5 rows of 4, the first 2 of them used, 100.0 % full" in describe_packing(
        about["packing"]
    )
    arguments.count_rows = False
    assert len(load_splits(Documents(), arguments, training).train) == 1  # two records are one block
    arguments.count_rows, arguments.max_train_samples = True, 99
    assert "of" not in load_splits(Documents(), arguments, training).about["train"]["packing"]
    *_, training = parse_arguments("pt", ["--output_dir", "o", "--block_size", "4", "--packing", "False"])
    arguments.max_train_samples = 3
    assert load_splits(Documents(), arguments, training).train["input_ids"][:] == [[0], [1], [2]]


def test_held_out_records_cannot_be_cut_in_another_way(tmp_path: Path) -> None:
    arguments = asked(tmp_path, range(9), validation_split_percentage=20)
    *_, training = parse_arguments("pt", ["--output_dir", "o", "--block_size", "4", "--eval_packing", "False"])
    with pytest.raises(ArgumentError, match="cannot be cut in another way"):
        load_splits(Documents(), arguments, training)


def test_several_sources_are_joined_taken_from_and_mixed(tmp_path: Path) -> None:
    left, right = write(tmp_path / "left.jsonl", range(10)), write(tmp_path / "right.jsonl", range(100, 104))
    cache = str(tmp_path / "cache")
    training = SimpleNamespace(seed=0)
    joined = load_splits(Numbers(), DataArguments(train_file_dir=f"{left},{right}", data_cache_dir=cache), training)
    assert numbers_of(joined.train) == [*range(10), *range(100, 104)] and joined.mixture is None
    assert (joined.about["train"]["rows"], joined.about["train"]["files"]) == (14, [left, right])
    some = load_splits(Numbers(), DataArguments(train_file_dir=f"{left}#3,{right}#9", data_cache_dir=cache), training)
    found = numbers_of(some.train)
    assert len(found) == 12 and found[:3] == sorted(random.Random(0).sample(range(10), 3)), "as ever"
    # More than there are: each twice, and one of them once more.
    assert sorted(found.count(number) for number in range(100, 104)) == [2, 2, 2, 3]
    arguments = DataArguments(train_file_dir=f"{left},{right}", train_dataset_prob="3,1", data_cache_dir=cache)
    for strategy, number in (("over", 16), ("under", 13)):
        arguments.mix_strategy = strategy
        mixed = load_splits(Numbers(), arguments, training)
        assert mixed.mixture == Mixture((10, 4), (3.0, 1.0), number), strategy
    arguments.num_samples_each_epoch = 8
    mixture = load_splits(Numbers(), arguments, training).mixture
    assert mixture is not None and mixture.counts() == [6, 2]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notices of a test."""
    monkeypatch.setattr("hftune.logging._notices", found := [])
    return found


def pairs(*rows: tuple[list[int], list[int]]) -> Dataset:
    return Dataset.from_dict(
        {"prompt_ids": [a for a, _ in rows], "chosen_ids": [b for _, b in rows], "length": [1] * len(rows)}
    )


def test_rows_are_told_apart_by_all_their_ids() -> None:
    rows = pairs(([1, 2], [3]), ([1], [2, 3]), ([1, 2], [3]), ([], [1, 2, 3]))
    first, second, again, last = row_digests(rows)
    assert first == again and len({first, second, last}) == 3
    assert list(row_digests(rows.select([1, 3]))) == [second, last], "rows of a part begin elsewhere"
    text = Dataset.from_dict({"prompt": [[{"role": "user", "content": one}] for one in "aba"], "answer": [1, 1, 1]})
    first, second, again = row_digests(text)
    assert first == again != second


def test_held_out_rows_that_are_trained_are_counted(said: list[str]) -> None:
    train = [pairs(([1], [2]), ([3], [4])), pairs(([5], [6]))]
    say_shared_records(train, [pairs(([7], [8]))])
    assert not said
    say_shared_records(train, [pairs(([5], [6]), ([7], [8]), ([5], [6]))])
    assert "2 of the 3 held-out records are trained as well" in said[-1]
    say_shared_records(train, [pairs(([3], [4]))])
    assert "all of the 1 held-out records" in said[-1]


def test_files_of_streams_are_compared_by_name(said: list[str]) -> None:
    say_shared_files(["a", "b"], ["c"])
    assert not said
    say_shared_files(["a", "b"], ["b"])
    assert "b: trained and held out at once" in said[-1]


@pytest.mark.parametrize("flags", [(), ("--packing", "True"), ("--streaming", "True", "--max_steps", "2")])
def test_a_run_says_so(tmp_path: Path, said: list[str], flags: tuple[str, ...]) -> None:
    """A folder below the training data is searched with it."""
    held = tmp_path / "data" / "held" / "a.jsonl"
    held.parent.mkdir(parents=True)
    for file, rows in ((held, CHATS[:3]), (tmp_path / "data" / "b.jsonl", CHATS[3:9])):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ["--model_name_or_path", "none", "--output_dir", str(tmp_path / "out"), "--use_cpu", "True"]
    argv += ["--train_file_dir", str(tmp_path / "data"), "--validation_file_dir", str(held.parent), *flags]
    _, data_args, _, training_args = parse_arguments("sft", argv)
    encoder = ChatEncoder.from_arguments(make_tokenizer(), training_args)
    load_data(encoder, data_args, training_args)
    words = "trained and held out at once" if "--streaming" in flags else "all of the 3 held-out records"
    assert any(words in line for line in said)
