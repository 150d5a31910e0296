"""Places that are imported on demand: all are there, below whoever names them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from hftune.errors import ArgumentError
from hftune.on_demand import on_demand
from tests.unit.test_house import FILES, ROOT, floor, room

_PLACE = re.compile(r"hftune(\.\w+)+:\w+")


def places(file: Path) -> Iterator[str]:
    """Strings of a file, outside of its docstrings, that name a place."""
    text = file.read_text()
    # Few files have one; reading the code of all takes a second of every start of the tests.
    for node in ast.walk(ast.parse(text)) if _PLACE.search(text) else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PLACE.fullmatch(node.value):
            yield node.value


COMMANDS = (ROOT / "hftune" / "commands.csv").read_text()
NAMED = [(file, place) for file in FILES for place in places(file)]
NAMED += [(ROOT / "hftune" / "cli.py", found[0]) for found in _PLACE.finditer(COMMANDS)]


def test_gives_what_is_named() -> None:
    assert on_demand("hftune.errors:ArgumentError") is ArgumentError
    with pytest.raises(AttributeError):
        on_demand(":".join(("hftune.errors", "NoSuchError")))


@pytest.mark.parametrize(("file", "place"), NAMED, ids=[f"{file.name}-{place}" for file, place in NAMED])
def test_every_place_is_there_and_below(file: Path, place: str) -> None:
    module, _, name = place.partition(":")
    assert hasattr(import_module(module), name), f"{file.relative_to(ROOT)} names {place}"
    here, there = room(file), module.split(".")[1]
    assert here == there or floor(there) < floor(here), f"{here} imports {there}: {place}"
