"""Benchmarks name what hftune has: each shows its help, and nothing that it imports or watches was renamed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILES = sorted(BENCHMARKS.glob("*.py"))


@pytest.fixture(autouse=True)
def found_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    # Their names are as general as `train` and `memory`: no other test must meet them.
    for file in FILES:
        monkeypatch.delitem(sys.modules, file.stem, raising=False)


def test_every_benchmark_shows_its_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for file in FILES:
        module = importlib.import_module(file.stem)
        if "argparse" not in vars(module) or not hasattr(module, "main"):
            continue
        monkeypatch.setattr(sys, "argv", [str(file), "--help"])
        with pytest.raises(SystemExit) as ended:
            module.main()
        # The help begins with what the benchmark is for.
        assert ended.value.code == 0 and module.__doc__.split("\n")[0] in capsys.readouterr().out, file.name
        shown.append(file.stem)
    assert {"train", "train_tools", "first_step", "preprocess", "preference", "merge", "memory"} <= set(shown)


@pytest.mark.long
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_benchmark_takes_from_hftune_is_there(file: Path) -> None:
    """Imports stand in functions, and what is watched in tables, so a rename would show only when it is run."""
    missing = [name for name in sorted(set(names_of_hftune(ast.parse(file.read_text())))) if not is_there(name)]
    assert not missing, missing


def names_of_hftune(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, attribute) of what is imported from hftune, read of its modules, or named by two texts in a tuple."""
    modules = {}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("hftune"):
                for alias in node.names:
                    yield module, alias.name
                    modules[alias.asname or alias.name] = f"{module}.{alias.name}"
            case ast.Import():
                yield from ((alias.name, "") for alias in node.names if alias.name.startswith("hftune"))
            case ast.Tuple(elts=[ast.Constant(value=str(module)), ast.Constant(value=str(name)), *_]):
                if module.startswith("hftune."):
                    yield module, name
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in modules and is_module(modules[name]):
                yield modules[name], attribute


def is_module(dotted: str) -> bool:
    """Whether a name is a module, not something of one."""
    try:
        return importlib.util.find_spec(dotted) is not None
    except ModuleNotFoundError:
        return False


def is_there(name: tuple[str, str]) -> bool:
    """Whether a module is there, with this attribute or submodule."""
    module, attribute = name
    try:
        found = importlib.import_module(module)
        return not attribute or hasattr(found, attribute) or bool(importlib.import_module(f"{module}.{attribute}"))
    except ModuleNotFoundError:
        return False


def test_a_tool_that_fails_is_left_out_and_ours_ends_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    harness = importlib.import_module("harness")
    asked = []

    def run(tool: str) -> dict[str, float]:
        asked.append(tool)
        if tool == "bad":
            raise harness.Failed("exit code 1\nno such package")
        return {"speed": float(len(asked)), "losses": [1.0]}

    found = harness.in_turns(["hftune", "bad", "trl"], SimpleNamespace(quick=False, rounds=3), run)
    assert asked == ["hftune", "bad", "trl", "hftune", "trl", "hftune", "trl"]
    assert harness.medians(found["hftune"]) == {"speed": 4.0} and [*found] == ["hftune", "trl"]
    assert "bad is left out, it failed: no such package" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="hftune failed"):
        harness.in_turns(["hftune"], SimpleNamespace(quick=True), lambda tool: run("bad"))


@pytest.mark.parametrize("field", ["Pss", "Private_Dirty"])
def test_the_peak_is_that_of_what_was_started(field: str) -> None:
    harness = importlib.import_module("harness")
    code = "import subprocess, sys, time; kept = bytearray(2**26 + 1); time.sleep(0.4); kept = None; time.sleep(0.2)"
    with harness.Peak(field, 0.05) as peak:
        harness.words_of(
            [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"]
        )
    assert 64 < peak.mebibytes < 300
