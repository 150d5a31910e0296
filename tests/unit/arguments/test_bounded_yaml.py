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


@pytest.mark.parametrize(
    ("text", "line", "cause", "fix"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a stands here twice, first in line 1", "keep one of the two lines"),
        ("x:\n  a: 1\n  a: 1\n", 3, "a stands here twice, first in line 2", "keep one of the two lines"),
        ("x:\n\t- a\n", 2, "cannot start any token", "write spaces in place of tabs"),
        ("a: b: c\n", 1, "mapping values are not allowed", "write NAME: VALUE, a line each"),
    ],
)
def test_slips_have_a_line_and_a_way_out(file: Path, text: str, line: int, cause: str, fix: str) -> None:
    file.write_text(text)
    with pytest.raises(ArgumentError) as caught:
        bounded_yaml.load(file)
    assert caught.value.place == f"{file}:{line}"
    assert cause in caught.value.cause and fix in str(caught.value.fix)


def test_what_an_alias_brings_may_be_replaced(file: Path) -> None:
    """In whichever order the parts are made: `z` flattens `b` before `b` itself is made."""
    file.write_text("a: &a {k: 1}\nx: {y: &b {<<: *a, k: 2}}\nz: {<<: *b, k: 3}\nw: {<<: [*a, *b]}\n")
    assert bounded_yaml.load(file) == {"a": {"k": 1}, "x": {"y": {"k": 2}}, "z": {"k": 3}, "w": {"k": 1}}
