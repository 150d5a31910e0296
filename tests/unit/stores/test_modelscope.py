"""ModelScope: what its own client makes of a server that answers as it does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hftune.errors import ArgumentError
from hftune.stores import modelscope, pushing
from tests.unit.stores.hubs import ModelScope, Server, served

FLAG = "--model_name_or_path"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pytest.importorskip("modelscope_hub", reason="pip install modelscope-hub")
    files = {"config.json": b"{}", "tokenizer.json": b"[]"}
    with served(ModelScope({"models/o/tiny": files, "datasets/o/chats": {"a.jsonl": b"{}"}})) as found:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", found.url)
        monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("MODELSCOPE_HOME", str(tmp_path / "home"))
        # Read from the variables once a process.
        monkeypatch.setattr("modelscope_hub.config._default_config", None)
        modelscope.download.cache_clear()
        yield found
    modelscope.download.cache_clear()


def test_models_and_data_sets_are_downloaded(server: Server) -> None:
    model = modelscope.download("o/tiny", "model", FLAG)
    assert sorted(file.name for file in model.iterdir()) == ["config.json", "tokenizer.json"]
    assert (modelscope.download("o/chats", "dataset", "--train_file_dir") / "a.jsonl").read_bytes() == b"{}"
    server.repos.clear()
    modelscope.download.cache_clear()
    assert modelscope.download("o/tiny", "model", FLAG, offline=True) == model
    with pytest.raises(ArgumentError, match="o/none cannot be had from ModelScope") as found:
        modelscope.download("o/none", "model", FLAG)
    assert found.value.place == FLAG


def test_a_missing_client_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    with pytest.raises(ArgumentError, match="not installed") as found:
        modelscope.download("o/tiny", "model", FLAG)
    assert "pip install modelscope-hub" in str(found.value.fix)


def test_a_result_is_pushed(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = result(tmp_path)
    said = pushing.push(folder, "o/new", hub="modelscope", token="t", message="from hftune", private=True)
    (_, created), *_, (path, commit) = server.posted
    assert said == "o/new on ModelScope" and json.loads(created)["Visibility"] == 1
    assert path == "/api/v1/repos/models/o/new/commit/master" and "from hftune" in json.loads(commit)["commit_message"]
    assert sorted(action["path"] for action in json.loads(commit)["actions"]) == ["config.json", "model.safetensors"]
    # The client keeps notes and prints a report of its own.
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors", "optimizer.pt"]
    assert "Upload Report" not in capfd.readouterr().out


def result(tmp_path: Path) -> Path:
    """A folder with a model, and something that does not belong to it."""
    folder = tmp_path / "result"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w")
    (folder / "config.json").write_text("{}")
    (folder / "optimizer.pt").write_text("no part of a model")
    return folder


def test_where_a_result_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def push_folder(folder: Path, repo: str, **how: object) -> str:
        asked.append(repo)
        return "there"

    monkeypatch.setattr(pushing, "push_folder", push_folder)
    monkeypatch.setattr(pushing.objects, "upload", lambda names, folder, url, flag: asked.extend([*names, url]))
    assert pushing.push(tmp_path, "o/n", hub=None, token=None, message="m") == "there"
    assert pushing.push(result(tmp_path), "s3://b/m", hub=None, token=None, message="m") == "s3://b/m"
    assert asked == ["o/n", "config.json", "model.safetensors", "s3://b/m"]
