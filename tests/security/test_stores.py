"""Stores, hubs and registries that somebody has made to do harm: one message each, nothing outside the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.errors import ArgumentError, UserError
from hftune.stores import located, objects
from hftune.stores.registry import registered

FLAG = "--train_file_dir"
ROW = b'{"prompt": "Q", "response": "A"}\n'
URL = "memory://bucket/data"


class Strange:
    """A store that lists what it likes: names below the URL with sizes, and gives the bytes that it likes."""

    def __init__(self, files: dict[str, tuple[Any, bytes]]) -> None:
        self.files = files

    def find(self, root: str, detail: bool) -> dict[str, dict[str, Any]]:
        """All files."""
        return {f"{root}/{name}" if name else root: {"size": size} for name, (size, _) in self.files.items()}

    def get_file(self, path: str, aside: str) -> None:
        """A file's bytes."""
        Path(aside).write_bytes(next(content for name, (_, content) in self.files.items() if path.endswith(name)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, in a folder of its own with somebody's file."""
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "home" / "cache"))
    monkeypatch.setitem(objects.PACKAGES, "memory", "fsspec")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("mine")
    return tmp_path / "home"


def fetched(monkeypatch: pytest.MonkeyPatch, store: Strange, url: str = URL) -> Path:
    monkeypatch.setattr(objects, "_store_of", lambda url, flag: (store, "/bucket/data"))
    return objects.fetch(url, FLAG)


def good(*names: str) -> dict[str, tuple[Any, bytes]]:
    return {name: (len(ROW), ROW) for name in names}


NAMES = [
    *("../x", "a/../../x", "a//b", "./a", ".", "a/"),
    *("a\x1b[2Jb", "a\nb", "a\x00b", "\u202egpj.a", "a\ud800b", "..\\x"),
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_that_are_no_paths(monkeypatch: pytest.MonkeyPatch, home: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="whose name is no path") as found:
        fetched(monkeypatch, Strange(good("a.jsonl", name)))
    assert str(found.value).isprintable() or "\x1b" not in str(found.value)
    assert untouched(home)


@pytest.mark.parametrize(
    "files",
    [
        good("a", "a/b"),
        good("", "a.jsonl"),
        {"a.jsonl": (10**15, ROW)},
        {"a.jsonl": ([1], ROW)},
        {"a.jsonl": (len(ROW) - 1, ROW)},
        {"a.jsonl": (None, ROW)},
        {},
    ],
    ids=lambda files: ascii(files)[:40],
)
def test_lists_that_lie(monkeypatch: pytest.MonkeyPatch, home: Path, files: dict[str, tuple[Any, bytes]]) -> None:
    with pytest.raises(UserError) as found:
        fetched(monkeypatch, Strange(files))
    assert found.value.fix and found.value.place == FLAG and len(str(found.value)) < 1000
    assert untouched(home)


SECRET = "hush-Passw0rd-31"


@pytest.mark.parametrize(
    "url",
    [
        f"memory://key:{SECRET}@bucket/data",
        f"memory://bucket/data?X-Amz-Signature={SECRET}",
        f"memory://bucket/data?sig={SECRET}&se=2026",
        f"memory://bucket/data?token={SECRET}",
    ],
)
@pytest.mark.parametrize(
    "files", [good("a.jsonl"), {}, {"a.jsonl": (3, ROW)}, good("../x")], ids=["whole", "none", "changed", "name"]
)
def test_secrets_of_a_url(
    monkeypatch: pytest.MonkeyPatch, url: str, files: Any, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(objects, "_store_of", lambda url, flag: (Strange(files), "/bucket/data"))
    try:
        said = located._copy_of(url, FLAG, located._all)
    except UserError as error:
        said = str(error)
    said += str(located.origins)
    written = "".join(str(file) for file in home.rglob("*"))
    assert SECRET not in said + written + "".join(capfd.readouterr())


def untouched(home: Path) -> bool:
    outside = {file.name for file in home.iterdir()} <= {"cache", "thesis"}
    finished = [entry for entry in (home / "cache" / "stores").glob("*") if not entry.name.startswith(".")]
    return outside and (home / "thesis").read_text() == "mine" and not finished


# --- registries ---


@pytest.mark.parametrize(
    "content",
    [
        b"[]", b"null", b"{" * 100_000, b"\xff\xfe",
        b'{"one": 1, "one": 2}',
        *(
            json.dumps({"one": entry}).encode()
            for entry in (
                None, [], {"file_name": ["a"]},
                {"file_name": "a", "columns": "x"}, {"file_name": "a", "columns": {"prompt": ["x"]}},
                {"file_name": "a", "formatting": ["alpaca"]},
                {"file_name": "a", "num_samples": "5,/etc/passwd"}, {"file_name": "a", "num_samples": -5},
                {"file_name": "a", "num_samples": True},
                {"hf_hub_url": ["o/n"]}, {"hf_hub_url": "o/n", "subset": ["x"]},
            )
        ),
    ],
    ids=lambda content: ascii(content)[:70],
)  # fmt: skip
def test_registries(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "dataset_info.json").write_bytes(content)
    with pytest.raises(ArgumentError) as found:
        registered(str(tmp_path), "one", "huggingface")
    assert found.value.fix and "\x1b" not in str(found.value)
