"""docs/formats.md names every kind of file, every format and every kind of bad record that there is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hftune.data.readers.files import SUFFIXES
from hftune.data.records.formats import ASKS, FORMATS, PAIRS
from hftune.data.records.messages import _WEIGHTS

ROOT = Path(__file__).parents[3]
PAGE = " ".join((ROOT / "docs" / "formats.md").read_text(encoding="utf-8").split())
ABOUT_RUNS = {"data set not found", "empty file", "unusable record"}
"""Kinds that stop a run whatever is asked for, so that nothing is counted under them."""
# The modules that this page is about; chat templates and tokenising have kinds of their own.
MODULES = [
    *(ROOT / "hftune" / "data" / "readers").glob("*.py"),
    *(ROOT / "hftune" / "data" / "records").glob("*.py"),
    ROOT / "hftune" / "data" / "sources.py",
]


def kinds_in(file: Path) -> set[str]:
    """What the DataErrors of a module give as their kind: texts, and module constants by name."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given = [
        word.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("DataError", "Malformed")
        for word in [*node.keywords, *(ast.keyword("kind", part) for part in node.args[1:2])]
        if word.arg == "kind"
    ]
    found = {part.value for part in given if isinstance(part, ast.Constant)}
    return found | {texts[part.id] for part in given if isinstance(part, ast.Name) and part.id in texts}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_kinds(file: Path) -> None:
    missing = {kind for kind in kinds_in(file) - ABOUT_RUNS if f"`{kind}`" not in PAGE}
    assert not missing


def test_the_kinds_are_found() -> None:
    assert len(set().union(*map(kinds_in, MODULES))) >= 35


def test_columns_and_suffixes() -> None:
    formats = [*PAIRS, *(known for formats in FORMATS.values() for known in formats)]
    names = {key for known in formats for key in known.keys} | set(ASKS) | set(_WEIGHTS)
    assert not {name for name in names if f"`{name}`" not in PAGE}
    plain = {suffix for suffix in SUFFIXES if suffix.count(".") == 1}
    assert not {suffix for suffix in plain if f"`{suffix}`" not in PAGE}
