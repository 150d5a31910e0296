"""Which files of a folder are data."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from hftune.data.files import find_files
from hftune.errors import DataError
from hftune.logging import notices
from tests.unit.data.helpers import read_rows

FLAG = "--train_file_dir"


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_folder_is_searched_in_one_order(tmp_path: Path) -> None:
    for name in (
        "b.jsonl",
        "a/z.txt",
        "a.json",
        "c.jsonl.gz",
        "notes.md",
        ".hidden.jsonl",
        ".ipynb_checkpoints/x.json",
    ):
        write(tmp_path, name, "x")
    found = find_files(str(tmp_path), FLAG)
    assert [file.relative_to(tmp_path).as_posix() for file in found] == ["a.json", "a/z.txt", "b.jsonl", "c.jsonl.gz"]


def test_single_file(tmp_path: Path) -> None:
    path = write(tmp_path, "one.JSONL", "{}")
    assert find_files(str(path), FLAG) == [path]


@pytest.mark.parametrize(
    ("files", "target", "words"),
    [
        ({}, "absent", ["does not exist"]),
        ({}, "x" * 5000, ["does not exist"]),
        ({}, ".", ["found nothing", ".jsonl", ".parquet", "as .gz and .zst"]),
        ({"data.xlsx": "x"}, ".", ["data.xlsx", "Save the table as CSV in UTF-8. Files must be", ".json, .jsonl"]),
        ({"data.md": "x"}, "data.md", ["data.md", ".txt, .json, .jsonl"]),
        ({"a.jsonl": "{}", "b.jsonl": ""}, ".", ["b.jsonl is empty"]),
    ],
)
def test_find_refuses(tmp_path: Path, files: dict[str, str], target: str, words: list[str]) -> None:
    for name, content in files.items():
        write(tmp_path, name, content)
    with pytest.raises(DataError) as caught:
        find_files(str(tmp_path / target), FLAG)
    assert all(word in str(caught.value) for word in [*words, FLAG])


def test_links_blanks_and_unicode_in_names(tmp_path: Path) -> None:
    write(tmp_path, "far/real data.jsonl", "{}")
    write(tmp_path, "in/数据 é.jsonl", "{}")
    (tmp_path / "in" / "link.jsonl").symlink_to(tmp_path / "far" / "real data.jsonl")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "far")
    (tmp_path / "in" / "circle").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "root").symlink_to("/")
    (tmp_path / "in" / "dangling.bin").symlink_to(tmp_path / "nowhere")
    found = find_files(str(tmp_path / "in"), FLAG)
    assert [file.relative_to(tmp_path / "in").as_posix() for file in found] == [
        "folder/real data.jsonl",
        "link.jsonl",
        "数据 é.jsonl",
    ]


def test_files_of_other_kinds_are_said_but_companions_are_not(tmp_path: Path) -> None:
    for name in (
        "a.jsonl",
        "licenses.txt",
        "state.json",
        "README.md",
        "LICENSE",
        "dataset_info.json",
        ".gitattributes",
        "b.xlsx",
        "c.zip",
    ):
        write(tmp_path, name, "{}")
    assert [file.name for file in find_files(str(tmp_path), FLAG)] == ["a.jsonl", "licenses.txt", "state.json"]
    assert [said for said in notices() if str(tmp_path) in said] == [
        f"2 file(s) in {tmp_path} are left out, because their names do not end as data: b.xlsx, c.zip"
    ]


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    saved = Dataset.from_dict({"text": [f"row {number}" for number in range(10)]})
    saved.save_to_disk(tmp_path / "one", num_shards=2)
    # What `Dataset.map` leaves beside the data holds the same records again.
    write(tmp_path / "one", "cache-1234.arrow", (tmp_path / "one" / "data-00000-of-00002.arrow").read_bytes())
    rows = read_rows(find_files(str(tmp_path / "one"), FLAG))
    assert [row.value["text"] for row in rows] == [f"row {number}" for number in range(10)]
    assert rows[5].origin.endswith("data-00001-of-00002.arrow:1")

    DatasetDict({"b": saved, "a": saved}).save_to_disk(tmp_path / "dict")
    with pytest.raises(DataError, match="holds the splits a, b") as caught:
        find_files(str(tmp_path / "dict"), FLAG)
    assert str(tmp_path / "dict" / "b") in (caught.value.fix or "")
    assert len(read_rows(find_files(str(tmp_path / "dict" / "a"), FLAG))) == 10
