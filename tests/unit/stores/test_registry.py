"""`dataset_info.json`: what its entries stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.errors import ArgumentError
from hftune.stores.registry import Registered, registered


def registry(folder: Path, **entries: object) -> str:
    """A folder with a registry of these entries."""
    (folder / "dataset_info.json").write_text(json.dumps(entries))
    return str(folder)


SHAREGPT = {"formatting": "sharegpt", "file_name": "a"}


@pytest.mark.parametrize(
    ("entry", "source", "columns"),
    [
        ({"file_name": "a.json"}, "{folder}/a.json", {}),
        ({"file_name": "s3://b/a.json"}, "s3://b/a.json", {}),
        ({"hf_hub_url": "o/n", "subset": "en", "split": "test"}, "o/n:en@test", {}),
        ({"hf_hub_url": "o/n", "ms_hub_url": "p/n"}, "o/n", {}),
        (
            {"file_name": "a", "columns": {"prompt": "ask", "query": "", "response": "answer", "system": "system"}},
            "{folder}/a",
            {"instruction": "ask", "output": "answer"},
        ),
        ({"file_name": "a", "columns": {"prompt": "text"}}, "{folder}/a", {}),
        ({"file_name": "a", "columns": {"chosen": "good", "rejected": "rejected"}}, "{folder}/a", {"chosen": "good"}),
        (SHAREGPT | {"columns": {"messages": "messages"}}, "{folder}/a", {}),
        (
            SHAREGPT | {"columns": {"messages": "turns"}, "tags": {"role_tag": "from"}},
            "{folder}/a",
            {"conversations": "turns"},
        ),
    ],
)
def test_entries(tmp_path: Path, entry: dict[str, Any], source: str, columns: dict[str, str]) -> None:
    folder = registry(tmp_path, one=entry)
    assert registered(folder, "one", "huggingface") == Registered(source.format(folder=folder), columns)
    assert registered(folder, "two", "huggingface") is None


def test_the_hub_decides_which_name_counts(tmp_path: Path) -> None:
    folder = registry(tmp_path, one={"hf_hub_url": "o/n", "ms_hub_url": "p/n"})
    assert registered(folder, "one", "modelscope") == Registered("p/n")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"ms_hub_url": "o/n"}, "known under ms_hub_url only"),
        ({"script_url": "x"}, "come from script_url"),
        ({}, "come from nothing that is read"),
        ("a.json", "no object"),
        ({"file_name": "a", "columns": ["a"]}, "columns are no object"),
        ({"file_name": "a", "columns": {"images": "images"}}, "it has images"),
        ({"file_name": "a", "columns": {"prompts": "ask"}}, "unknown columns: prompts"),
        ({"file_name": "a", "formatting": "openai"}, "formatting is openai"),
    ],
)
def test_entries_that_cannot_be_read(tmp_path: Path, entry: object, said: str) -> None:
    folder = registry(tmp_path, one=entry)
    with pytest.raises(ArgumentError, match=said) as found:
        registered(folder, "one", "huggingface")
    assert found.value.place == f"{folder}/dataset_info.json: one"


def test_a_folder_without_a_registry(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no dataset_info.json in") as found:
        registered(str(tmp_path), "one", "huggingface")
    assert found.value.place == "--dataset_dir"


def test_a_registry_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"dataset_info.json"):
        registered(str(tmp_path), "one", "huggingface")
