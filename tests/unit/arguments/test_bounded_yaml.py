"""Limits of YAML files; what does harm is in tests/security/test_hostile_data.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.arguments import bounded_yaml
from hftune.errors import ArgumentError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.yaml"


def test_depth(file: Path) -> None:
    deepest = bounded_yaml.MAX_DEPTH - 1
    file.write_text("[" * deepest + "]" * deepest)
    bounded_yaml.load(file)
    file.write_text("[" * (deepest + 2) + "]" * (deepest + 2))
    with pytest.raises(ArgumentError, match="nested deeper than 50"):
        bounded_yaml.load(file)


def test_values_are_counted_with_their_aliases(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("a: &a [1, 2, 3]\nb: [*a, *a]\n")  # 1 + (1 + 4) + (1 + 1 + 2 x 4) values
    monkeypatch.setattr(bounded_yaml, "MAX_NODES", 16)
    assert bounded_yaml.load(file) == {"a": [1, 2, 3], "b": [[1, 2, 3], [1, 2, 3]]}
    monkeypatch.setattr(bounded_yaml, "MAX_NODES", 15)
    with pytest.raises(ArgumentError, match="stands for more than 15 values"):
        bounded_yaml.load(file)


def test_size(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_yaml, "MAX_BYTES", 6)
    file.write_text("a: bcd")
    assert bounded_yaml.load(file) == {"a": "bcd"}
    file.write_text("a: bcde")
    with pytest.raises(ArgumentError, match="more than 6 bytes"):
        bounded_yaml.load(file)


def test_the_line_is_said(file: Path) -> None:
    file.write_text("a: b\nc: [\n")
    with pytest.raises(ArgumentError) as caught:
        bounded_yaml.load(file)
    assert caught.value.place == f"{file}:3"
