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


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    from hftune.data.splits import no_such_name",
        "from hftune.no_such_room import anything",
        "import hftune.no_such_module",
        'PARTS = {"data": ("hftune.data.splits", "no_such_name", "leave")}',
        "from hftune.arguments import entry\nentry.no_such_name(1)",
    ],
)
def test_a_rename_is_found(code: str) -> None:
    assert not all(map(is_there, names_of_hftune(ast.parse(code))))


MEASURED = """# Benchmarks

## preference

```
hftune   185   (180 - 190)   3,196 MiB   11.3 s
   trl    78     (78 - 78)   7,594 MiB    6.9 s
```

## train

```
unpacked:
   hftune   177   167 - 186   0%   9.3 s   2,135   1.5
      trl   115   112 - 118   16%  4.8 s   1,988   1.5
packed:
   hftune   202   195 - 210   0%  11.0 s   2,648   1.6
```
"""


def test_a_section_goes_between_the_marks_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    publish = importlib.import_module("publish")
    monkeypatch.setattr(publish, "PAGE", tmp_path / "page.md")
    publish.PAGE.write_text("# Benchmarks\n")
    for figure in ("1", "2"):
        publish.publish("train", f"## train\n\n{figure}\n")
        publish.publish("merge", "## merge\n\n3\n")
    found = (tmp_path / "page.md").read_text()
    assert found == f"# Benchmarks\n\n## merge\n\n3\n\n## train\n\n2\n\n{publish.END}"


def test_a_readme_has_the_figures_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = importlib.import_module("publish")
    monkeypatch.setattr(publish, "ROWS", publish.ROWS[:5])
    rows = [line.split(" | ")[1:4] for line in publish.peers(MEASURED, 0).splitlines()[2:]]
    assert rows == [
        ["**177**", "115", "-"],
        ["2,135", "**1,988**", "-"],  # the least is the best of memory
        ["**202**", "-", "-"],  # and the rows of another table are not taken
        ["**185**", "78", "-"],
        ["**3,196**", "7,594", "-"],
    ]


def test_tables_go_between_their_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    publish = importlib.import_module("publish")
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(publish, "peers", lambda page, language: f"new {language}")
    for name in publish.READMES:
        (tmp_path / name).write_text("before\n<!-- peers -->\nold\n<!-- /peers -->\nafter\n")
    publish.write_readmes()
    found = [(tmp_path / name).read_text() for name in publish.READMES]
    assert found == [f"before\n<!-- peers -->\nnew {number}\n<!-- /peers -->\nafter\n" for number in (0, 1)]


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


def test_a_process_finds_this_hftune_and_another_environment_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its last line counts; a repository that was given is passed on."""
    harness = importlib.import_module("harness")
    told = "[sys.argv[1:], os.environ['PYTHONPATH'].split(':')[0]]"
    (tmp_path / "told.py").write_text(f"import json, os, sys\nprint('words')\nprint(json.dumps({told}))\n")
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(harness, "__file__", str(tmp_path / "harness.py"))
    assert harness.ask("told.py", ["--flag"]) == [["--flag"], str(BENCHMARKS.parent)]
    assert harness.ask("told.py", [], f"SOURCE:{tmp_path / 'python'}") == [["--repository", "SOURCE"], ""]
    with pytest.raises(harness.Failed, match="No such file"):
        harness.ask("absent.py", [])


@pytest.mark.parametrize("field", ["Pss", "Private_Dirty"])
def test_the_peak_is_that_of_what_was_started(field: str) -> None:
    harness = importlib.import_module("harness")
    code = "import subprocess, sys, time; kept = bytearray(2**26 + 1); time.sleep(0.4); kept = None; time.sleep(0.2)"
    with harness.Peak(field, 0.05) as peak:
        harness.words_of(
            [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"]
        )
    assert 64 < peak.mebibytes < 200
