"""Files of the working folder never run: not under what hftune starts, not under what that starts in its turn."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hftune import child_processes
from hftune.arguments.named_code import named_code
from hftune.errors import ArgumentError
from hftune.tools.pipeline.spec import read_spec
from hftune.tools.pipeline.steps import Step, steps_of
from tests.spokes import spokes

ROOT = Path(__file__).parents[2]
NAMES = ["yaml", "json", "difflib", "torch", "psutil", "hftune", "sitecustomize", "usercustomize", "tqdm", "encodings"]
EVIL = "import pathlib; pathlib.Path({flag!r}).touch()\n"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder full of modules that leave a flag when they are run, as files and as packages."""
    folder, flag = tmp_path / "hostile", tmp_path / "it ran"
    folder.mkdir()
    evil = EVIL.format(flag=str(flag))
    for name in NAMES:
        (folder / f"{name}.py").write_text(evil)
    for name in ("deepspeed", "transformers", "numpy", "safetensors"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(evil)
    for name in ("python", "deepspeed", "torchrun", "hftune", "nvidia-smi", "srun"):
        path = folder / (name if name != "deepspeed" else "torchrun.sh")
        path.write_text(f"#!/bin/sh\ntouch '{flag}'\n")
        path.chmod(0o755)
    monkeypatch.chdir(folder)
    yield folder
    assert not flag.exists(), "code of the working folder has run"


# --- the variables ---


@pytest.mark.parametrize(
    ("search", "kept"),
    [
        ("", []),
        (".", []),
        ("/opt/mine::/opt/more", ["/opt/mine", "/opt/more"]),
        ("../hostile", []),
        ("src", ["{here}/src"]),
        ("{here}", ["{here}"]),
        ("/opt/mine:.:src:/opt/mine", ["/opt/mine", "{here}/src"]),
    ],
)
def test_what_stays_of_pythonpath(hostile: Path, search: str, kept: list[str]) -> None:
    (hostile / "src").mkdir()
    (hostile / "here").symlink_to(hostile)
    found = child_processes.environment({"PYTHONPATH": search.format(here=hostile), "PYTHONSAFEPATH": ""})
    assert found["PYTHONPATH"].split(os.pathsep) == [str(ROOT), *(entry.format(here=hostile) for entry in kept)]
    assert found["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize("search", ["", "/usr/bin::/bin", "../hostile:/usr/bin", "bin:/bin"])
def test_programs_are_not_those_of_the_working_folder(hostile: Path, search: str) -> None:
    (hostile / "bin").mkdir()
    entries = child_processes.environment({"PATH": search})["PATH"].split(os.pathsep)
    assert entries[0] == str(Path(sys.executable).parent) and all(os.path.isabs(entry) for entry in entries)
    assert str(hostile) not in entries


def test_packages_that_are_installed_are_not_put_before_python_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "ROOT", Path("/usr/lib/python3/site-packages"))
    assert child_processes.environment({"PYTHONPATH": "/mine"})["PYTHONPATH"] == "/mine"


# --- what really runs ---

GRANDCHILD = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *{words!r}]).returncode)"


@pytest.mark.parametrize(
    ("search", "words"),
    spokes(
        [".:", None],
        [
            ["-c", "import json, yaml, difflib, psutil, tqdm"],
            ["-c", GRANDCHILD.format(words=["-u", "-m", "json.tool", "--help"])],
            ["-c", GRANDCHILD.format(words=["-u", "{script}"])],
            ["{script}"],
        ],
    ),
)
def test_children_and_theirs(
    hostile: Path, tmp_path: Path, words: list[str], search: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import json, yaml, difflib, hftune.errors\nprint(hftune.errors.__file__)\n")
    if search is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", search)
    command = child_processes.python(*(word.replace("{script}", str(script)) for word in words))
    done = child_processes.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    if "script" in words[-1]:
        assert done.stdout.strip() == str(ROOT / "hftune" / "errors.py")


@pytest.mark.parametrize("name", ["python", "torchrun", "srun"])
def test_programs_by_name(hostile: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f":.:{os.environ['PATH']}")
    found = child_processes.program(name)
    assert found is None or Path(found).parent != hostile
    if name == "python":
        assert child_processes.run(["python", "-c", "import yaml"]).returncode == 0


# --- scripts ---

PIPELINE = "model: m\noutput_dir: o\nstages:\n  {name}:\n    script: {script}\n    train_file_dir: d\n"


@pytest.mark.parametrize(
    ("kind", "launcher"), spokes(["file", "link", "folder"], ["python", "torchrun", "deepspeed", "srun"])
)
def test_scripts_are_hftune_s_own(hostile: Path, tmp_path: Path, kind: str, launcher: str) -> None:
    name = "run_sft.py"
    if kind == "file":
        (hostile / name).write_text(EVIL.format(flag=str(tmp_path / "it ran")))
    elif kind == "link":
        (hostile / name).symlink_to(ROOT / name)  # which may be another one when the stage starts
    else:
        (hostile / name).mkdir()
    (hostile / "p.yaml").write_text(PIPELINE.format(name="one", script="sft") + f"launcher: {{{launcher}: {{}}}}\n")
    (step,) = steps_of(read_spec("p.yaml"))
    command = step.command()
    assert str(ROOT / name) in command and name not in command


def test_a_merge_s_script_too(hostile: Path) -> None:
    (hostile / "merge_peft_adapter.py").write_text("")
    (hostile / "p.yaml").write_text(PIPELINE.format(name="one", script="sft") + "    use_peft: true\n")
    merge = steps_of(read_spec("p.yaml"))[1]
    assert merge.command()[:2] == ["python", str(ROOT / "merge_peft_adapter.py")]


def test_without_its_scripts_hftune_says_so(monkeypatch: pytest.MonkeyPatch, hostile: Path, tmp_path: Path) -> None:
    (hostile / "run_sft.py").write_text("")
    monkeypatch.setattr(child_processes, "SHIPPED", tmp_path)
    with pytest.raises(ArgumentError, match="pip install --force-reinstall"):
        Step("sft", "sft", "sft", tmp_path, {}, {}, "x:1").command()


# --- a user's own functions ---


def test_a_function_comes_from_the_path_that_is_named(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rewards.py").write_text("def mine(**given):\n    return [1.0]\n")
    (hostile / "rewards.py").write_text(EVIL.format(flag=str(tmp_path / "it ran")))
    function = named_code(f"{tmp_path}/rewards.py:mine", "--reward_funcs")
    assert function() == [1.0] and "rewards" not in sys.modules
    monkeypatch.chdir(tmp_path)
    assert named_code("rewards.py:mine", "--reward_funcs")() == [1.0], "relative to the working folder"


# --- nobody goes another way ---

FORBIDDEN = {
    "subprocess": None,
    "os": {"system", "popen", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "execlpe"}
    | {"spawnv", "spawnve", "spawnvp", "spawnl", "spawnlp", "posix_spawn", "posix_spawnp", "startfile"},
    "pty": None,
    "runpy": None,
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}
"""Modules, and which of their functions start programs; None: all."""

MAY_START = re.compile(r"subprocess|\bpty|runpy|asyncio|from os|os\.(?:sys|po|ex|sp|st)|sys\.executable")
"""What a source that may start something has in it: parsing the others takes a second."""


def ways_out(source: str) -> list[str]:
    """Where a source could start a program."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [entry.name for entry in node.names if FORBIDDEN.get(entry.name.split(".")[0], ()) is None]
        elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN:
            names = FORBIDDEN[node.module]
            found += [f"{node.module}.{entry.name}" for entry in node.names if names is None or entry.name in names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = FORBIDDEN.get(node.value.id, ())
            found += [f"{node.value.id}.{node.attr}"] if names is None or node.attr in names else []
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess as sp",
        "def f():\n    from subprocess import Popen as P",
        "import os\nos.system('x')",
        "from os import execv",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert MAY_START.search(source) and ways_out(source)


def test_everything_is_started_by_the_one_file() -> None:
    """Also, no command has `sys.executable` without -P: `child_processes.python` makes them."""
    files = [*(ROOT / "hftune").rglob("*.py"), *(ROOT / "examples").rglob("*.py"), *ROOT.glob("*.py")]
    found = {}
    for file in files:
        if file != ROOT / "hftune" / "child_processes.py":
            source = file.read_text()
            if not MAY_START.search(source):
                continue
            found[str(file)] = ways_out(source) + [
                f"line {node.lineno}"
                for node in (ast.walk(ast.parse(source)) if "sys.executable" in source else ())
                if isinstance(node, ast.List) and any("sys.executable" in ast.unparse(entry) for entry in node.elts)
            ]
    assert not {file: ways for file, ways in found.items() if ways}
