"""Splits of a folder, by the names that the Hub, `datasets` and people give."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from hftune.data.readers.files import find_files
from hftune.data.readers.hub import data_files
from hftune.data.readers.specs import parse_sources, path_exists
from hftune.errors import DataError
from hftune.logging import notices
from tests.unit.data.helpers import read_rows

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
