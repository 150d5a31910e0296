"""docs/pains.md names tests that exist, and leaves out no report that it is about."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pains.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "`tests/" in line]
REPORTS = {
    "MedicalGPT": [10, 22, 49, 91, 193, 239, 294, 322, 330, 355, 357, 373],
    "LLaMA-Factory": [
        *(253, 662, 1595, 2189, 2323, 2424, 2466, 2509, 2776),
        *(3073, 3125, 3205, 5262, 5419, 5577, 6105, 8859, 10596),
    ],
    "Axolotl": [705, 1134, 2277, 3754],
    "Unsloth": [1290, 1667, 1971, 2900],
}


@functools.cache
def names_in(file: str) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" (")[0].strip("| "))
def test_every_test_is_there(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split(" | ")[-1])
    assert named
    assert [(file, name) for file, name in named if name not in names_in(file)] == []


@pytest.mark.parametrize("tracker", REPORTS)
def test_every_report_is_there(tracker: str) -> None:
    found = set()
    for row in ROWS:
        reports = row[row.rindex("(", 0, row.index(" | ", 2)) : row.index(" | ", 2)]
        whose = ""
        for name, number in re.findall(r"([A-Z][\w-]+)? ?#(\d+)", reports):
            whose = name or whose
            found |= {int(number)} if whose == tracker else set()
    assert sorted(found) == sorted(REPORTS[tracker])
