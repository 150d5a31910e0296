"""Files of stores: one in memory, Hugging Face's and S3's as their clients ask them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from hftune.errors import ArgumentError
from hftune.stores import objects
from tests.unit.stores.hubs import HuggingFace, Server, served

FLAG = "--train_file_dir"
ROW = b'{"prompt": "Q", "response": "A"}\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(objects.PACKAGES, "memory", "fsspec")
    return tmp_path / "cache" / "stores"


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    store.pipe({"/data/a.jsonl": ROW * 3, "/data/deep/b.jsonl": ROW, "/data/deep/c.bin": b"x"})
    yield store
    store.rm("/data", recursive=True)


@pytest.mark.parametrize(
    ("text", "url"),
    [("s3://b/k", True), ("GS://b/k", True), ("hf://datasets/o/n", True), ("https://h/f", False), ("a/b", False)],
)
def test_urls(text: str, url: bool) -> None:
    assert objects.is_url(text) is url


def test_a_file_keeps_its_name_and_is_copied_once(memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = objects.fetch("memory://data/a.jsonl", FLAG)
    assert found.name == "a.jsonl" and found.read_bytes() == ROW * 3 and found.parents[1] == cache
    monkeypatch.setattr(type(memory), "get_file", None)
    assert objects.fetch("memory://data/a.jsonl", FLAG) == found


def test_a_folder_keeps_its_name_and_what_is_chosen(memory: Any) -> None:
    found = objects.fetch("memory://data/", FLAG, lambda names: [name for name in names if name.endswith("l")])
    assert found.name == "data"
    names = sorted(file.relative_to(found).as_posix() for file in found.rglob("*") if file.is_file())
    assert names == ["a.jsonl", "deep/b.jsonl"]


def test_another_state_is_another_copy(memory: Any) -> None:
    first = objects.fetch("memory://data/a.jsonl", FLAG)
    memory.pipe("/data/a.jsonl", ROW * 2 + ROW)
    second = objects.fetch("memory://data/a.jsonl", FLAG)
    # A run may be reading the first one.
    assert first.is_file() and second != first


def test_an_interrupted_copy_is_made_again(memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = type(memory).get_file

    def get(store: Any, path: str, aside: str, **more: Any) -> None:
        Path(aside).write_bytes(b"hal")
        raise KeyboardInterrupt

    monkeypatch.setattr(type(memory), "get_file", get)
    with pytest.raises(KeyboardInterrupt):
        objects.fetch("memory://data", FLAG)
    assert not [entry for entry in cache.iterdir() if not entry.name.startswith(".")]
    monkeypatch.setattr(type(memory), "get_file", whole)
    folder = objects.fetch("memory://data", FLAG)
    assert (folder / "deep/c.bin").read_bytes() == b"x" and (folder / "deep/b.jsonl").read_bytes() == ROW


def test_errors_of_a_store_are_one_message() -> None:
    refused = type("NoCredentials", (Exception,), {"__module__": "botocore.exceptions"})
    said = pytest.raises(ArgumentError, match=r"s3://me:\*\*\*@b cannot be read: no login")
    with said as found, objects._errors_of_store("s3://me:pw-1234567@b", FLAG):
        raise refused("no login")
    assert found.value.place == FLAG


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://data/none", "there is nothing at memory://data/none"),
        ("oss://bucket/data", "read with the package ossfs, which is not installed"),
    ],
)
def test_what_cannot_be_had_is_said(memory: Any, url: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        objects.fetch(url, FLAG)


def test_uploads_end_with_the_config(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"w")
    (tmp_path / "config.json").write_text("{}")
    put: list[str] = []
    names = ["config.json", "model.safetensors"]
    with monkeypatch.context() as patch:
        store = SimpleNamespace(put_file=lambda path, key: put.append(key))
        patch.setattr(objects, "_store_of", lambda url, flag: (store, "b/m"))
        objects.upload(names, tmp_path, "s3://b/m", "--hub_model_id")
    assert put == ["b/m/model.safetensors", "b/m/config.json"]
    objects.upload(names, tmp_path, "memory://data/new", "--hub_model_id")
    assert memory.cat_file("/data/new/model.safetensors") == b"w"


def test_a_store_that_takes_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise PermissionError("read only")

    store = SimpleNamespace(put_file=refuse)
    monkeypatch.setattr(objects, "_store_of", lambda url, flag: (store, "b/m"))
    with pytest.raises(ArgumentError, match="s3://b/m cannot be written: read only") as found:
        objects.upload(["config.json"], tmp_path, "s3://b/m", "--hub_model_id")
    assert str(tmp_path) in str(found.value.fix)


@pytest.fixture
def hugging_face(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    from huggingface_hub import HfFileSystem, constants

    files = {"train/a.jsonl": ROW * 2, "README.md": b"#"}
    with served(HuggingFace({"datasets/owner/chats": files, "models/owner/tiny": {"config.json": b"{}"}})) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        HfFileSystem.clear_instance_cache()
        yield server
    HfFileSystem.clear_instance_cache()


def test_hf_urls_are_read_from_the_endpoint(hugging_face: Server) -> None:
    assert objects.fetch("hf://datasets/owner/chats/train/a.jsonl", FLAG).read_bytes() == ROW * 2
    folder = objects.fetch("hf://datasets/owner/chats", FLAG)
    assert (folder.name, (folder / "README.md").read_bytes()) == ("chats", b"#")
    assert json.loads((objects.fetch("hf://owner/tiny", "--model_name_or_path") / "config.json").read_text()) == {}
    with pytest.raises(ArgumentError, match="hf://owner/none cannot be read"):
        objects.fetch("hf://owner/none", FLAG)
