"""docker/: what images are made from is there, at the versions of constraints.txt, and their commands are commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
KNOWN = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "CMD", "COMMENT"}


@pytest.fixture(params=FILES, ids=lambda file: file.name)
def steps(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The instructions of an image: `instruction` and `value`, continued lines joined."""
    with request.param.open("rb") as stream:
        found: list[dict[str, Any]] = DockerfileParser(fileobj=stream).structure
    return found


def values(steps: list[dict[str, Any]], instruction: str) -> list[str]:
    return [step["value"] for step in steps if step["instruction"] == instruction]


def test_there_are_two() -> None:
    assert [file.name for file in FILES] == ["cpu.Dockerfile", "cuda.Dockerfile"]


def test_instructions(steps: list[dict[str, Any]]) -> None:
    assert {step["instruction"] for step in steps} <= KNOWN
    assert values(steps, "FROM") == ["${BASE}"] and values(steps, "ARG")[0].startswith("BASE=")
    assert values(steps, "USER") == ["1000"], "not as root"


def test_what_is_copied_is_there(steps: list[dict[str, Any]]) -> None:
    copied = [words.split() for words in values(steps, "COPY")]
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    for *sources, target in copied:
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source not in ignored, f"{source} does not reach the builder"
        assert len(sources) == 1 or target == "./"
    named = {source for *sources, _ in copied for source in sources}
    scripts = {file.name for file in [*ROOT.glob("run_*.py"), *ROOT.glob("merge_*.py")]}
    # What setup.py puts into the package, and what pyproject.toml reads.
    assert scripts | {"hftune", "ds_configs", "examples", "setup.py", "pyproject.toml", "README.md"} <= named


def test_versions_are_those_of_the_constraints(steps: list[dict[str, Any]]) -> None:
    torch, package = [words for words in values(steps, "RUN") if "pip install" in words]
    assert "$(grep '^torch==' constraints.txt)" in torch
    assert package.endswith("-c constraints.txt")
    assert "torch" not in package, "the resolver would replace the build that was chosen"
    extras = re.search(r"'\.\[([\w,]+)\]'", package)
    declared = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert extras and {*extras[1].split(",")} <= {*declared}
    order = [step["value"].split()[0] for step in steps if step["instruction"] in ("COPY", "RUN")]
    assert order.index("constraints.txt") < order.index("pip") < order.index("hftune"), "torch is kept between builds"


def test_commands_are_bash(steps: list[dict[str, Any]]) -> None:
    for command in values(steps, "RUN"):
        checked = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
        assert "apt-get update" not in command or command.count("/var/lib/apt/lists") == 1
