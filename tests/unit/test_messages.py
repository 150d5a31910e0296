"""Every message for users says where it is about, what is wrong, and something that can be done."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "hftune").rglob("*.py"))
ERRORS = {"UserError", "ArgumentError", "DataError", "ManifestError"}
VAGUE = re.compile(
    r"see --help|\bcheck (it|them|the)\b|^fix( it| the (file|records?))?\.?$|^(drop|fix|give|change) (it|one)\.?$|"
    r"documentation of|^Check\b|something|somehow",
    re.IGNORECASE,
)


def fixes(file: Path) -> list[tuple[int, str]]:
    """The texts given as `fix` to errors of ours, with their lines: those parts that are written out."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "fix":
            parts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            found.append((node.value.lineno, " ".join(part for part in parts if isinstance(part, str))))
    return found


def test_no_way_out_is_vague() -> None:
    found = [(file, *given) for file in FILES for given in fixes(file)]
    assert len(found) > 500
    assert [(str(file), line, text) for file, line, text in found if VAGUE.search(text.strip())] == []


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


def test_vague_ones_are_found() -> None:
    for text in ("see --help", "Check it.", "check the path", "fix the file", "drop one", "give one"):
        assert VAGUE.search(text), text
    assert not VAGUE.search("checkpoints: give checkpoint-5")
