"""Several sources behind one flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.data.readers.specs import SourceSpec, parse_sources
from hftune.errors import ArgumentError


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
        ("a.jsonl,b.jsonl", [("a.jsonl", None), ("b.jsonl", None)]),
        ("./a.jsonl#7 , b.jsonl", [("./a.jsonl", 7), ("b.jsonl", None)]),
        ("a.jsonl b.jsonl\n owner/name:en@train#9", [("a.jsonl", None), ("b.jsonl", None), ("owner/name:en@train", 9)]),
        ("a.jsonl,", [("a.jsonl", None)]),
        # The same source twice is two sources.
        ("a.jsonl a.jsonl", [("a.jsonl", None), ("a.jsonl", None)]),
        # What exists is a path, whatever it looks like.
        ("x#5", [("x#5", None)]),
        ("x#5#3,x#5", [("x#5", 3), ("x#5", None)]),
        ("e f.jsonl a.jsonl", [("e f.jsonl", None), ("a.jsonl", None)]),
        ("my data/c,d.jsonl#2,a.jsonl", [("my data/c,d.jsonl", 2), ("a.jsonl", None)]),
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
        (" , ", None, ["no data was named"]),
        ([], None, ["no data was named"]),
        ("a.jsonl#0", None, ["'0' after # is not a number of records", "PATH#500"]),
        ("a.jsonl#many", None, ["'many' after #"]),
        ("a.jsonl#", None, ["'' after #"]),
        ("a.jsonl#-3", None, ["'-3' after #"]),
        ("#5", None, ["#5 does not exist"]),
        ("a.jsonl,b.jsonl", "0.5", ["1 weights for 2 sources", "--train_dataset_prob"]),
        ("a.jsonl,b.jsonl", "0.5,0", ["0 is no weight"]),
        ("a.jsonl,b.jsonl", "0.5,-1", ["-1 is no weight"]),
        ("a.jsonl,b.jsonl", "0.5,nan", ["nan is no weight"]),
        ("a.jsonl,b.jsonl", "0.5,half", ["'half' is no weight"]),
    ],
)
def test_refused(here: Path, given: Any, weights: Any, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_sources(given, weights)
    assert "--train_file_dir" in str(caught.value) and caught.value.fix
    assert all(word in str(caught.value) for word in words), caught.value
