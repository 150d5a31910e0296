"""Every message for users says where it is about, what is wrong, and something that can be done."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "hftune").rglob("*.py"))
ERRORS = {"UserError", "ArgumentError", "DataError", "ManifestError"}


def test_every_error_has_a_way_out() -> None:
    """Of those that are made where they are raised; `errors.py` makes one of several."""
    lacking = []
    for file in FILES:
        if file.name in ("errors.py", "checking.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            made = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS
            if made and not any(keyword.arg == "fix" for keyword in node.keywords):
                lacking.append(f"{file}:{node.lineno}")
    assert lacking == []
