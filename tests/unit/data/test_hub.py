"""Names of the Hub, as far as they can be tried without one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.data.hub import (
    HubName,
    addresses,
    data_files,
    download,
    may_exist,
    parse_hub_name,
    stream_chunks,
    stream_files,
)
from hftune.data.records import to_conversation
from hftune.errors import DataError
from hftune.logging import notices
from tests.unit.data.helpers import call, read_rows, user

FLAG = "--train_file_dir"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", HubName("owner/name")),
        ("owner/name:en", HubName("owner/name", "en")),
        ("owner/name@test", HubName("owner/name", None, "test")),
        ("owner/na.me-1_2:a b@train[:10%]", None),
        ("owner/na.me-1_2:a b@train[10%]", HubName("owner/na.me-1_2", "a b", "train[10%]")),
        ("squad", HubName("squad")),
        ("./owner/name", None),
        ("/owner/name", None),
        ("a/b/c", None),
        ("owner/", None),
        ("owner/name@", None),
    ],
)
def test_names(text: str, expected: HubName | None) -> None:
    assert parse_hub_name(text) == expected


def test_a_folder_read_by_datasets_gives_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"prompt": "Q", "response": "A"}\n' * 3)
    (folder / "test.jsonl").write_text('{"prompt": "T", "response": "A"}\n')
    monkeypatch.chdir(tmp_path)
    rows = read_rows(download(HubName("owner/name"), FLAG, cache_dir=str(tmp_path / "cache")))
    assert [row.value for row in rows] == [{"prompt": "Q", "response": "A"}] * 3 and rows[2].line == 3
    rows = read_rows(download(HubName("owner/name", split="test"), FLAG, cache_dir=str(tmp_path / "cache")))
    assert [row.value["prompt"] for row in rows] == ["T"]
    with pytest.raises(DataError, match='Unknown split "dev"') as caught:
        download(HubName("owner/name", split="dev"), FLAG, cache_dir=str(tmp_path / "cache"))
    assert caught.value.place == FLAG
    # A path that is there is read as it is, not through the library.
    assert [file.name for file in data_files("owner/name", FLAG)] == ["train.jsonl"]


@pytest.mark.parametrize(
    ("splits", "read", "said"),
    [
        ("train validation test", "validation", "its split validation is read"),
        ("train test", "test", "its split test is read"),
        ("train", "train", "it has no split for validation"),
    ],
)
def test_held_out_records_are_not_those_of_training(
    splits: str, read: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    for name in splits.split():
        (tmp_path / "owner" / "name" / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n")
    monkeypatch.chdir(tmp_path)
    files = download(HubName("owner/name"), "--validation_file_dir", cache_dir=str(tmp_path / "cache"))
    assert [row.value["text"] for row in read_rows(files)] == [read] and said in notices()[-1]


@pytest.mark.parametrize(
    ("name", "flag"), [("owner/name", FLAG), ("owner/name:en@test", FLAG), ("squad", "--dataset_name")]
)
def test_without_a_connection_one_message_says_both(name: str, flag: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        data_files(name, flag, cache_dir=str(tmp_path))
    message = str(caught.value)
    assert "is no file or folder here" in message and "Hub" in message and flag in message
    assert caught.value.kind == "data set not found"


@pytest.mark.parametrize("path", ["squad", "a/b/c", "owner/name.jsonl", "./owner/name", "owner/name.JSON.gz"])
def test_a_missing_path_is_not_looked_for_on_the_hub(path: str) -> None:
    assert not may_exist(path)
    with pytest.raises(DataError, match=r"does not exist"):
        data_files(path, FLAG)


def test_what_may_be_there(tmp_path: Path) -> None:
    assert may_exist(str(tmp_path)) and may_exist("owner/name:en")


def test_what_datasets_stores_as_json_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that differ in type, such as the arguments of calls, are strings of JSON in its Arrow files."""
    records = [
        {
            "messages": [user("Q"), call("f", x=1)],
            "tools": [{"name": "f", "parameters": {"a": {"b": None}}}],
            "answer": 1,
        },
        {
            "messages": [user("Q"), call("g", y="z", w=[1, "a"])],
            "tools": [{"name": "g", "parameters": {"c": 2}}],
            "answer": "s",
        },
    ]
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.chdir(tmp_path)
    rows = read_rows(download(HubName("owner/name"), FLAG, cache_dir=str(tmp_path / "cache")))
    assert [row.value for row in rows] == records
    assert to_conversation(rows[1]).messages == records[1]["messages"]


def test_a_stream_downloads_a_file_when_it_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing before the first record, and the second file only behind the last record of the first one."""
    files = [f"hf://datasets/owner/name@0123/{name}.jsonl" for name in ("a", "b")]
    reached = []

    def download(self: Any, address: str) -> str:
        reached.append(address)
        local = tmp_path / address.rpartition("/")[2]
        local.write_text(json.dumps({"text": address[-7]}) + "\n")
        return str(local)

    config = SimpleNamespace(data_files={"train": files, "test": ["hf://datasets/owner/name@0123/c.zip"]})
    monkeypatch.setattr("datasets.load_dataset_builder", lambda name, config_name: SimpleNamespace(config=config))
    monkeypatch.setattr("datasets.DownloadManager.download", download)
    found = stream_files("owner/name", FLAG)
    read = stream_chunks(found)
    assert found == files and not reached
    next(read)
    assert reached == files[:1]
    assert len([*read]) == 1 and reached == files
    with pytest.raises(DataError, match="has no files of a split dev; its splits: train, test"):
        stream_files("owner/name@dev", FLAG)
    with pytest.raises(DataError, match="has files that are not read one by one") as caught:
        stream_files("owner/name@test", FLAG)
    assert caught.value.place == f"--streaming, {FLAG}"


def test_where_the_files_of_a_data_set_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `datasets` finds them, here of a folder."""
    (tmp_path / "owner" / "name").mkdir(parents=True)
    for split in ("train", "test"):
        (tmp_path / "owner" / "name" / f"{split}.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    assert [Path(file).name for file in addresses(HubName("owner/name"), FLAG)] == ["train.jsonl"]
    assert [Path(file).name for file in addresses(HubName("owner/name", split="test"), FLAG)] == ["test.jsonl"]
    monkeypatch.chdir("/")
    with pytest.raises(DataError, match="is no file or folder here"):
        addresses(HubName("owner/name"), FLAG)
