"""The house stays in order: imports go down only, and a wheel has every file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOORS = [
    {
        *(
            "chat_templates",
            "child_processes",
            "checks",
            "constants",
            "digests",
            "errors",
            "hftune",
            "interrupts",
        ),
        *("logging", "on_demand", "opening", "path_hints", "secrets", "template_arguments", "terminal"),
        *("tables", "user_cache", "visible", "weight_files"),
    },
    {"compat", "losses"},
    {"distributed", "publishing"},
    {"stores"},
    {"arguments"},
    {"data", "models", "checkpoints"},
    {"preflight"},
    {"trainers", "merging"},
    {"stage", "inference"},
    {"tools"},
    {"cli"},
]
ASKED_BY_TOOLS = {"listening", "pipeline", "reporting", "schema", "words"}
"""Tools that other tools may ask: a server; keys of a pipeline; pages and tables; what a file takes; what running
stages write; flags."""
FILES = sorted((ROOT / "hftune").rglob("*.py"))


def room(path: Path) -> str:
    """The top-level name below hftune that a file belongs to."""
    parts = path.relative_to(ROOT / "hftune").with_suffix("").parts
    return {"__init__": "hftune", "__main__": "cli"}.get(parts[0], parts[0])


def floor(name: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if name in rooms)


def test_imports_go_down() -> None:
    upwards = []
    for file in FILES:
        here = room(file)
        for module, name in re.findall(r"^ *from (hftune[\w.]*) import (\w+)", file.read_text(), re.MULTILINE):
            # `from hftune.distributed import ranks` names a room, too.
            there = module.split(".")[1] if "." in module else name
            there = there if any(there in rooms for rooms in FLOORS) else "hftune"  # its version
            if there != here and (floor(there) > floor(here) or floor(there) == floor(here) != 0):
                upwards.append(f"{file.relative_to(ROOT)}: {here} imports {there}: {module}")
    assert FILES and upwards == []


def test_a_tool_knows_no_other() -> None:
    for file in (ROOT / "hftune" / "tools").rglob("*.py"):
        own = file.relative_to(ROOT / "hftune" / "tools").parts[0].removesuffix(".py")
        for there in re.findall(r"hftune\.tools\.(\w+)", file.read_text()):
            assert there == own or there in ASKED_BY_TOOLS, f"{file}: {there}"


def test_a_wheel_holds_every_file_of_the_package() -> None:
    """Setuptools takes modules by itself, and of other files those that pyproject.toml names."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {Path(*package.split("."), name) for package, names in named.items() for name in names}
    others = [file for file in (ROOT / "hftune").rglob("*") if file.suffix not in (".py", ".pyc") and file.is_file()]
    assert {file.relative_to(ROOT) for file in others if "shipped" not in file.parts} == packed
