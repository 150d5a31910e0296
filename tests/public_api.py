"""The names and signatures that scripts and extensions of users build on, as text.   python -m tests.public_api --write

Public are the modules that the scripts import and that `docs/architecture.md` imports in its examples. The text is kept
in `tests/public_api.txt`: a change that was not meant shows in `tests/unit/test_public_api.py`, one that was meant in
the commit.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests" / "public_api.txt"
# A line of an example that is a patch begins with +, - or a blank.
_IMPORT = re.compile(r"^[+ ]? *from (hftune[\w.]*) import ", re.MULTILINE)


def modules() -> list[str]:
    """The public modules."""
    files = [*ROOT.glob("run_*.py"), ROOT / "merge_peft_adapter.py", ROOT / "docs" / "architecture.md"]
    named = {name for file in files for name in _IMPORT.findall(file.read_text())}
    return sorted(name for name in named if _file(name).is_file())


def text() -> str:
    """A line for each public name: functions with parameters, classes with fields and methods."""
    lines = []
    for module in modules():
        body = ast.parse(_file(module).read_text()).body
        lines += [f"{module}", *(f"    {line}" for line in _lines(body, ""))]
    return "\n".join(lines) + "\n"


def _file(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def _lines(body: list[ast.stmt], owner: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
            yield from _lines(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and _is_public(node.name):
            returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield f"{owner}{node.name}({ast.unparse(node.args)}){returned}"
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_public(node.target.id):
            yield f"{owner}{node.target.id}: {ast.unparse(node.annotation)}"
        elif isinstance(node, ast.Assign):
            names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            yield from (f"{owner}{name}" for name in names if _is_public(name))


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        KEPT.write_text(text())
    else:
        print(text(), end="")
