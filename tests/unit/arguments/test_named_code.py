"""Functions and classes that an argument names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.arguments.named_code import named_code
from hftune.errors import ArgumentError


def test_of_a_module_and_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine:\n    pass\n")
    assert named_code("json:loads", "--x")('{"a": 1}') == {"a": 1}
    assert named_code(f"{tmp_path}/mine.py:Mine", "--x", "class").__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("loads", "'loads' names no class\n.*to do: write --x FILE.py:CLASS or MODULE:CLASS"),
        ("json:lods", "json:lods cannot be loaded: .*has no attribute"),
        ("jsn:loads", "jsn:loads cannot be loaded: No module"),
        ("nowhere/mine.py:Mine", "cannot be loaded: .*No such file"),
        ("/dev/null/.py:Mine", "cannot be loaded: .*No such file"),
        ("..x:Mine", "cannot be loaded: ..x is no name of a module"),
        ("a..b:Mine", "cannot be loaded: a..b is no name of a module"),
        (".:Mine", "cannot be loaded: . is no name of a module"),
        ("json:", "cannot be loaded: .*has no attribute"),
        ("\x1b]0;x:Mine", "cannot be loaded: .* is no name of a module"),
    ],
)
def test_what_is_not_there(name: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){said}"):
        named_code(name, "--x", "class")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_opened(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "mine.py")
    with pytest.raises(ArgumentError, match="No such file"):
        named_code(f"{tmp_path}/mine.py:Mine", "--x")


def test_a_hint_comes_first() -> None:
    with pytest.raises(ArgumentError, match=r"to do: did you mean loads\? write --x FILE.py:FUNCTION"):
        named_code("lods", "--x", hint="did you mean loads?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n1 / 0\n", "raised ZeroDivisionError: division by zero\n  where: --x ({file}:2)"),
        ("import json\njson.loads('')\n", "raised JSONDecodeError: .*\n  where: --x ({file}:2)"),
        ("def f(:\n", "raised SyntaxError: .*\n  where: --x ({file}:1)"),
    ],
)
def test_an_error_of_the_code_itself_has_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError) as refused:
        named_code("mine.py:Mine", "--x")
    start, _, end = said.format(file=file).partition(".*")
    assert start in str(refused.value) and end in str(refused.value)
