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


def test_the_page_quotes_what_is_said() -> None:
    """docs/mistakes.md: each part of a message between what stands for names and numbers is written in some file."""
    page = (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8")
    said = "".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text(encoding="utf-8")) for file in FILES)
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    quoted = [quote for row in rows for quote in re.findall(r"`(.*?)`", row)]
    ours = [quote for quote in quoted if not quote.startswith("generation_batch_size")]  # TRL's
    parts = [part for quote in ours for part in re.split(r" ?x/y ?| ?\bN\b ?", quote) if part]
    assert len(ours) >= 12
    assert [part for part in parts if part not in said] == []
