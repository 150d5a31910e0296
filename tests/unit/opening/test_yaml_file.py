"""Limits of YAML files; what does harm is in tests/security/test_hostile_data.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.errors import ArgumentError
from hftune.opening import yaml_file
from hftune.tools.pipeline.spec import read_yaml


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.yaml"


def test_depth(file: Path) -> None:
    file.write_text("[" * 2000 + "]" * 2000)
    with pytest.raises(ArgumentError, match="nested too deeply"):
        yaml_file.read_yaml(file)


def test_size(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "MAX_BYTES", 6)
    file.write_text("a: bcd")
    assert yaml_file.read_yaml(file) == {"a": "bcd"}
    file.write_text("a: bcde")
    with pytest.raises(ArgumentError, match="more than 6 bytes"):
        yaml_file.read_yaml(file)


def test_the_line_is_said(file: Path) -> None:
    file.write_text("a: b\nc: [\n")
    with pytest.raises(ArgumentError) as caught:
        yaml_file.read_yaml(file)
    assert caught.value.place == f"{file}:3"


@pytest.mark.parametrize(
    "value",
    (
        *("*hush-hush", "!hush-hush", "!hu'sh-hush", "!!int hush-hush", "!!binary hush-hu\xe9sh", "{<<: hush-hush}"),
        *("[&hush-hush 1, &hush-hush 2, *hush-hushed]", "hush-hush: 1: 2", "%hush-hush", "@hush-hush", "'hush-hush"),
        *('"hush-\\qhush"', "| hush-hush", "{hush-hush: 1}: 2}", "? [hush-hush]\n: 1\n ? 3"),
    ),
)
def test_a_fault_tells_no_value(file: Path, value: str) -> None:
    """Passwords begin with any sign."""
    file.write_text(f"a: 1\nhub_token: {value}\n")
    with pytest.raises(ArgumentError) as found:
        yaml_file.read_yaml(file)
    faults = [found.value]
    try:
        read_yaml(file)  # takes a little more, as it makes no values of nodes that hold others
    except ArgumentError as fault:
        faults.append(fault)
    for fault in faults:
        text = fault.render()
        assert "hush" not in text and "not valid YAML" in text and str(file) in text and "quotes" in text
        assert fault.__cause__ is None or "hush" not in str(fault.__cause__)


@pytest.mark.parametrize(
    ("text", "words"),
    (("a: *b\n", "undefined alias"), ("a: !b c\n", "constructor for the tag"), ("a: [1, 2\nb: c", "but got ':'")),
)
def test_what_is_wrong_is_said(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        yaml_file.read_yaml(file)


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a stands here twice, first in line 1"),
        ("x:\n  a: 1\n  a: 1\n", 3, "a stands here twice, first in line 2"),
        ("x:\n\t- a\n", 2, "cannot start any token"),
        ("a\uff1a1\nb: 2\n", 2, "mapping values are not allowed"),
    ],
)
def test_slips_have_a_line_and_a_way_out(file: Path, text: str, line: int, cause: str) -> None:
    file.write_text(text)
    with pytest.raises(ArgumentError) as caught:
        yaml_file.read_yaml(file)
    assert caught.value.place == f"{file}:{line}"
    assert cause in caught.value.cause and "write NAME: VALUE, a line each" in str(caught.value.fix)


def test_what_an_alias_brings_may_be_replaced(file: Path) -> None:
    """In whichever order the parts are made: `z` flattens `b` before `b` itself is made."""
    file.write_text("\ufeffa: &a {k: 1}\nx: {y: &b {<<: *a, k: 2}}\nz: {<<: *b, k: 3}\nw: {<<: [*a, *b]}\n")
    assert yaml_file.read_yaml(file) == {"a": {"k": 1}, "x": {"y": {"k": 2}}, "z": {"k": 3}, "w": {"k": 1}}


def test_values_are_counted_with_their_aliases(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("a: &a [1, 2, 3]\nb: [*a, *a]\n")  # 1 + (1 + 4) + (1 + 1 + 2 x 4) values
    monkeypatch.setattr(yaml_file, "MAX_VALUES", 16)
    assert yaml_file.read_yaml(file) == {"a": [1, 2, 3], "b": [[1, 2, 3], [1, 2, 3]]}
    monkeypatch.setattr(yaml_file, "MAX_VALUES", 15)
    with pytest.raises(ArgumentError, match="stands for more than 15 values"):
        yaml_file.read_yaml(file)


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n"])
def test_an_alias_inside_what_it_stands_for(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ArgumentError, match="stands for more than"):
        yaml_file.read_yaml(file)
