"""docs/architecture.md: its drawings and tables are the code's, and its examples apply to the files as they are."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hftune.errors import UserError
from tests.documents import ROOT, patches

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
EXAMPLES = dict(zip(re.findall(r"^### An? (.+)$", PAGE, flags=re.M), patches(PAGE), strict=True))


@pytest.fixture(scope="module")
def architecture() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs" / "pictures"))
    return importlib.import_module("architecture")


def files_of(patch: str) -> list[str]:
    """The files that a patch changes or makes."""
    return re.findall(r"^diff --git a/(\S+)", patch, flags=re.M)


@pytest.mark.parametrize("part", ["rooms", "script"])
def test_the_page_shows_what_the_code_says(architecture: ModuleType, part: str) -> None:
    text = {"rooms": architecture.rooms, "script": architecture.script}[part]()
    assert architecture.filled(PAGE, {part: text}) == PAGE, "python docs/pictures/architecture.py --model MODEL"


def test_every_room_has_a_floor(architecture: ModuleType) -> None:
    table = PAGE[PAGE.index("| floor | rooms |") : PAGE.index("## From the command line")]
    floors = [re.findall(r"`?(\w+)`?", row.split("|")[2]) for row in table.splitlines() if row.startswith("| ")][2:]
    below = architecture.room_imports()
    order = {room: number for number, rooms in enumerate(floors) for room in rooms if room in below}
    assert set(order) == set(below)
    assert [(room, there) for room in below for there in below[room] if order[there] <= order[room]] == []


def test_imports_on_demand_count(architecture: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        'import hftune\nfrom hftune.data import splits\nA = "hftune.models.heads:head_of"\nB = "hftune.x"\n'
    )
    assert list(architecture.modules(file)) == ["hftune", "hftune.data.splits", "hftune.models.heads"]
    assert [architecture.room_of_module(name) for name in architecture.modules(file)] == ["base", "data", "models"]


def test_hooks_are_those_of_the_method(architecture: ModuleType) -> None:
    assert architecture.hooks_of("training_step") == ["before_step", "stepping", "after_step"]
    assert architecture.hooks_of("finish_run") == []


def test_common_features_are_read_from_their_list(architecture: ModuleType) -> None:
    common = dict(architecture.common_features())
    assert common["hftune.trainers.features.speed:Speed"] == "always"
    assert common["hftune.trainers.features.tiling:Tiling"] == "`args.tiled_mlp`"
    assert "is_mixture" in common["hftune.trainers.features.router_loss:RouterLoss"], "a variable is spelt out"


def test_docstrings_are_found_without_importing(architecture: ModuleType) -> None:
    assert architecture.docstring_of("hftune.errors", "UserError.at") == inspect.getdoc(UserError.at)
    # A function of a module.
    assert architecture.docstring_of("hftune.arguments.entry", "parse_arguments")


def test_files_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`((?:hftune|tests|docs|ds_configs)/[\w/]+\.\w+)`", PAGE))
    assert len(named) > 20
    # NAME, A and B stand for what an addition is called.
    assert [name for name in named if not (ROOT / name).exists() and not re.search(r"NAME|/A/", name)] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_apply(name: str, tmp_path: Path) -> None:
    for file in files_of(EXAMPLES[name]):
        if (ROOT / file).exists():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    # Not within the repository: there `git apply` would skip files outside of the folder in silence.
    command = ["git", "-c", "core.autocrlf=false", "apply", "--check", "-"]
    applied = subprocess.run(command, cwd=tmp_path, input=EXAMPLES[name], text=True, capture_output=True)
    assert applied.returncode == 0, f"{applied.stderr}: write the example on the page anew"


@pytest.mark.parametrize(
    ("name", "changed", "made"),
    [
        ("preference loss", 3, 0),
        ("chat format", 2, 0),
        ("trainer feature", 1, 1),
        ("DeepSpeed feature", 1, 1),
        ("architecture", 2, 0),
        ("stage", 1, 3),
    ],
)
def test_how_many_files_an_addition_takes(name: str, changed: int, made: int) -> None:
    files = files_of(EXAMPLES[name])
    there = [file for file in files if (ROOT / file).exists()]
    assert (len(there), len(files) - len(there)) == (changed, made), files
