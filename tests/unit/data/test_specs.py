"""Several sources behind one flag, and splits of a folder by the names that the Hub, `datasets` and people give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

from hftune.data.columns import apply_columns, check_columns, columns_found, parse_columns
from hftune.data.files import find_files
from hftune.data.hub import data_files
from hftune.data.records import to_conversation
from hftune.data.specs import SourceSpec, parse_sources, path_exists
from hftune.errors import ArgumentError, DataError
from hftune.logging import notices
from tests.unit.data.helpers import assistant, read_rows, row, user


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with files whose names are hard to tell from lists."""
    for name in ("a.jsonl", "b.jsonl", "x#5", "e f.jsonl", "my data/c,d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a.jsonl", [("a.jsonl", None)]),
        ("a.jsonl#500", [("a.jsonl", 500)]),
        ("./a.jsonl#7 , b.jsonl", [("./a.jsonl", 7), ("b.jsonl", None)]),
        ("a.jsonl b.jsonl\n owner/name:en@train#9", [("a.jsonl", None), ("b.jsonl", None), ("owner/name:en@train", 9)]),
        # The same source twice is two sources.
        ("a.jsonl a.jsonl", [("a.jsonl", None), ("a.jsonl", None)]),
        # What exists is a path, whatever it looks like.
        ("x#5", [("x#5", None)]),
        ("x#5#3,x#5", [("x#5", 3), ("x#5", None)]),
        ("e f.jsonl, a.jsonl b.jsonl", [("e f.jsonl", None), ("a.jsonl", None), ("b.jsonl", None)]),
        ("my data/c,d.jsonl#2", [("my data/c,d.jsonl", 2)]),
        ("no such file", [("no", None), ("such", None), ("file", None)]),
        (["e f.jsonl", "not there, not here#4"], [("e f.jsonl", None), ("not there, not here", 4)]),
    ],
)
def test_sources(here: Path, given: str | list[str], expected: list[tuple[str, int | None]]) -> None:
    assert parse_sources(given) == [SourceSpec(path, take) for path, take in expected]


def test_a_long_list(here: Path) -> None:
    names = [f"folder/shard-{number:05}.jsonl" for number in range(60)]
    assert [spec.path for spec in parse_sources(",".join(names))] == names
    assert [spec.path for spec in parse_sources("x" * 5000)] == ["x" * 5000]


@pytest.mark.parametrize("weights", ["0.8,0.2", " 0.8 0.2 ", [0.8, 0.2], ["0.8", "0.2"]])
def test_weights(here: Path, weights: Any) -> None:
    specs = parse_sources("a.jsonl#10,b.jsonl", weights)
    assert specs == [SourceSpec("a.jsonl", 10, 0.8), SourceSpec("b.jsonl", None, 0.2)]


@pytest.mark.parametrize(
    ("given", "weights", "words"),
    [
        ("", None, ["no data was named"]),
        ([], None, ["no data was named"]),
        ("a.jsonl#0", None, ["'0' after # is not a number of records", "PATH#500"]),
        ("a.jsonl#many", None, ["'many' after #"]),
        ("#5", None, ["#5 does not exist"]),
        ("a.jsonl,b.jsonl", "0.5", ["1 weights for 2 sources", "--train_dataset_prob"]),
        ("a.jsonl,b.jsonl", "0.5,0", ["0 is no weight"]),
        ("a.jsonl,b.jsonl", "0.5,nan", ["nan is no weight"]),
        ("a.jsonl,b.jsonl", "0.5,half", ["'half' is no weight"]),
    ],
)
def test_refused(here: Path, given: Any, weights: Any, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_sources(given, weights)
    assert "--train_file_dir" in str(caught.value) and caught.value.fix
    assert all(word in str(caught.value) for word in words), caught.value


# --- splits -------------------------------------------------------------------------------------------------------

TRAIN, HELD = "--train_file_dir", "--validation_file_dir"


def folder_of(root: Path, *names: str) -> str:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}\n")
    return str(root)


def found(path: str, flag: str = TRAIN) -> list[str]:
    root = Path(path.partition("@")[0])
    return [file.relative_to(root).as_posix() for file in find_files(path, flag)]


@pytest.mark.parametrize(
    ("train", "held", "test"),
    [
        # what `hf download` and `push_to_hub` write
        ("data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet",
         "data/validation-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("train.jsonl", "dev.jsonl", "test.jsonl"),
        ("a.train.jsonl b_train.json", "a.val.jsonl", "eval-2.jsonl"),
        ("train/a.jsonl train/dev_notes.jsonl", "validation/a.jsonl", "test/train.jsonl"),
        ("en/train_eval.jsonl", "en/valid.csv", "en/testing.jsonl.gz"),
        ("train_sft-00000-of-00001.jsonl", "valid_sft-00000-of-00001.jsonl", "test_sft-00000-of-00001.jsonl"),
    ],
)  # fmt: skip
def test_each_split_is_read_for_what_it_is(train: str, held: str, test: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "set", *train.split(), held, test)
    assert found(folder) == sorted(train.split()) and found(folder, HELD) == [held]
    assert found(folder, "--against") == [held]
    assert found(f"{folder}@train") == sorted(train.split())
    assert found(f"{folder}@validation", HELD) == found(f"{folder}@dev") == [held]
    assert found(f"{folder}@test", HELD) == [test]
    said = [line for line in notices() if line.startswith(folder)]
    assert any("is read" in line and f"to evaluate: --validation_file_dir {folder}@" in line for line in said)


def test_without_validation_the_test_split_is_held_out(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "train.jsonl", "test.jsonl", "more.jsonl")
    assert found(folder) == ["more.jsonl", "train.jsonl"] and found(folder, HELD) == ["test.jsonl"]
    assert notices()[-2] == (
        f"{folder}: files without a split's name, train is read (2 of 3 files), not test "
        f"({TRAIN} {folder}@test reads that; to evaluate: {HELD} {folder}@test)"
    )


@pytest.mark.parametrize("names", ["a.jsonl latest.jsonl contest.jsonl", "test.jsonl", "test/a.jsonl test/b.jsonl"])
def test_where_names_tell_nothing_apart_all_is_read(names: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, *names.split())
    before = len(notices())
    assert found(folder) == found(folder, HELD) == sorted(names.split()) and len(notices()) == before


def test_a_split_of_any_name(tmp_path: Path) -> None:
    """UltraFeedback's; a word that is no split's own name chooses all of its kind."""
    folder = folder_of(
        tmp_path, *(f"data/{name}-00000-of-00001.jsonl" for name in ("train_sft", "train_prefs", "test_sft"))
    )
    assert found(f"{folder}@train_prefs") == ["data/train_prefs-00000-of-00001.jsonl"]
    assert found(folder) == found(f"{folder}@train")
    assert len(found(folder)) == 2
    with pytest.raises(DataError, match="has no split gen: its splits are test_sft, train_prefs, train_sft") as error:
        find_files(f"{folder}@gen", TRAIN)
    assert error.value.place == f"{TRAIN} {folder}@gen"


def test_a_saved_dictionary_of_splits(tmp_path: Path) -> None:
    sets = DatasetDict({"train": Dataset.from_dict({"text": ["a", "b"]}), "test": Dataset.from_dict({"text": ["c"]})})
    sets.save_to_disk(tmp_path / "set")
    texts = {path: [row.value["text"] for row in read_rows(find_files(f"{tmp_path}/set{path}", TRAIN))]
             for path in ("", "@test", "/test")}  # fmt: skip
    assert texts == {"": ["a", "b"], "@test": ["c"], "/test": ["c"]}


def test_a_name_with_an_at_sign_is_a_path_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path / "a@test", "x.jsonl")
    folder_of(tmp_path / "owner" / "name", "train.jsonl", "test.jsonl")
    monkeypatch.chdir(tmp_path)
    assert [file.name for file in find_files("a@test", TRAIN)] == ["x.jsonl"]
    # A folder here wins over a data set of the Hub, with a split, too.
    assert [file.name for file in data_files("owner/name@test", TRAIN)] == ["test.jsonl"]
    assert path_exists("owner/name@test") and not path_exists("owner/other@test")
    (spec, other) = parse_sources("owner/name@test#5,owner/name")
    assert (spec.path, spec.take, other.path) == ("owner/name@test", 5, "owner/name")


QA = {"prompt": "question", "response": "answer"}


@pytest.mark.parametrize(
    "given",
    [
        "prompt=question response=answer",
        " prompt=question, response=answer ",
        '{"prompt": "question", "response": "answer"}',
        {"prompt": "question", "response": "answer"},
    ],
)
def test_ways_to_write_them(given: Any) -> None:
    assert parse_columns(given) == QA


@pytest.mark.parametrize("given", [None, "", {}])
def test_none(given: Any) -> None:
    assert parse_columns(given) == {}
    plain = row(a=1)
    assert apply_columns(plain, {}) is plain


@pytest.mark.parametrize(
    "given",
    ["question", "prompt=", "=question", "prompt=a response=a", "prompt=a prompt=b", '{"prompt": 3}', "{", {"a": None}],
)
def test_renaming_refused(given: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_columns(given)
    assert caught.value.place == "--columns" and caught.value.fix


def test_renamed_columns_are_recognised() -> None:
    source = row(4, question="Q", answer="A", level=2)
    renamed = apply_columns(source, QA)
    assert renamed.value == {"prompt": "Q", "response": "A", "level": 2}
    assert renamed.origin == source.origin and source.value["question"] == "Q"
    assert to_conversation(renamed).messages == [user("Q"), assistant("A")]


def test_names_may_be_swapped_and_missing() -> None:
    swapped = parse_columns("chosen=rejected rejected=chosen")
    assert apply_columns(row(chosen="a", rejected="b"), swapped).value == {"chosen": "b", "rejected": "a"}
    assert apply_columns(row(answer="A"), QA).value == {"response": "A"}
    assert apply_columns(row(question="Q", prompt=None), QA).value == {"prompt": "Q"}


def test_two_columns_for_one_name() -> None:
    with pytest.raises(DataError, match='has "prompt" already') as caught:
        apply_columns(row(3, question="Q", prompt="P"), QA)
    assert caught.value.place == "data.jsonl:3" and caught.value.kind == "column under two names"


def test_a_column_that_no_record_has() -> None:
    rows = [row(question="Q"), row(answer="A", other=1)]
    found = set().union(*(columns_found(each, QA) for each in rows))
    check_columns(QA, found)
    with pytest.raises(ArgumentError, match="no record has the column answer"):
        check_columns(QA, columns_found(rows[0], QA))
