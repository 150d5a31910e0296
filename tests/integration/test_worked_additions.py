"""The examples of docs/architecture.md are applied as a new contributor would, and do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DIFF, COMMANDS = re.compile(r"^```diff\n(.*?)^```", re.S | re.M), re.compile(r"^```sh\n(.*?)^```", re.S | re.M)
EXAMPLES = {
    part.partition("\n")[0]: (diff[1], commands[1])
    for part in PAGE.split("\n### ")
    if (diff := DIFF.search(part)) and (commands := COMMANDS.search(part))
}
SAYS = {
    "A preference loss": "train_loss 50.69",
    "A chat format": "train_loss",
    "A trainer feature": "padding_share 0.",
    "A DeepSpeed feature": "train_loss",
    "An architecture": "load balancing x 0.01",
    "A stage": "train_loss",
}


def apply(diff: str, folder: Path, *flags: str) -> None:
    done = subprocess.run(["git", "apply", *flags, "-"], cwd=folder, input=diff, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_examples_are_known() -> None:
    assert EXAMPLES.keys() == SAYS.keys()


@pytest.mark.parametrize("title", SAYS)
def test_it_fits(title: str) -> None:
    apply(EXAMPLES[title][0], ROOT, "--check")


@pytest.mark.slow
@pytest.mark.parametrize("title", SAYS)
def test_it_works(title: str, tiny_model: Path, tmp_path: Path) -> None:
    copy, (diff, commands) = tmp_path / "hftune", EXAMPLES[title]
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "outputs", "build", "dist", "site", "*.egg-info"))
    # Outside of a repository, whose files they would have to be.
    apply(diff, copy)
    words = {"MODEL": str(tiny_model), "OUT": str(tmp_path / "out"), "PYTHONPATH": str(copy)}
    environment = {**os.environ, **words, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if title == "An architecture":
        make = "import sys; from pathlib import Path; from tests.architectures import make_model as make; "
        make += "make('solar_open', Path(sys.argv[1]))"
        environment["MODEL"] = str(tmp_path / "model")
        subprocess.run([sys.executable, "-c", make, environment["MODEL"]], cwd=copy, env=environment, check=True)
    done = subprocess.run(["bash", "-ec", commands], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and SAYS[title] in done.stdout + done.stderr, done.stdout + done.stderr
