"""The examples of docs/architecture.md are applied as a new contributor would, and do what the page says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

ADDITIONS = ROOT / "examples" / "additions"
SAYS = {
    "preference_loss": "train_loss 50.69",
    "reward": "rewards/distinct/mean",
    "rl_algorithm": "train_loss",
    "chat_format": "train_loss",
    "trainer_feature": "padding_share 0.",
    "check": "would still rise at the last step, 5",
    "deepspeed_feature": "train_loss",
    "architecture": "load balancing x 0.01",
    "stage": "train_loss",
}


def example(name: str) -> tuple[str, str]:
    """The patch, and the commands at its head."""
    text = (ADDITIONS / f"{name}.diff").read_text(encoding="utf-8")
    head = text[: text.index("\ndiff --git")]
    return text, "\n".join(line.removeprefix("#").removeprefix(" ") for line in head.splitlines())


def apply(diff: str, folder: Path, *flags: str) -> None:
    done = subprocess.run(["git", "apply", *flags, "-"], cwd=folder, input=diff, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_examples_are_known() -> None:
    assert {file.stem for file in ADDITIONS.iterdir()} == SAYS.keys()


@pytest.mark.parametrize("name", SAYS)
def test_it_fits(name: str) -> None:
    apply(example(name)[0], ROOT, "--check")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_it_works(name: str, tiny_model: Path, tmp_path: Path) -> None:
    copy, (diff, commands) = tmp_path / "hftune", example(name)
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "outputs", "build", "dist", "site", "*.egg-info"))
    # Outside of a repository, whose files they would have to be.
    apply(diff, copy)
    words = {"MODEL": str(tiny_model), "OUT": str(tmp_path / "out"), "PYTHONPATH": str(copy)}
    environment = {**os.environ, **words, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if name == "architecture":
        make = "import sys; from pathlib import Path; from tests.architectures import make_model as make; "
        make += "make('solar_open', Path(sys.argv[1]))"
        environment["MODEL"] = str(tmp_path / "model")
        subprocess.run([sys.executable, "-c", make, environment["MODEL"]], cwd=copy, env=environment, check=True)
    done = subprocess.run(["bash", "-ec", commands], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and SAYS[name] in done.stdout + done.stderr, done.stdout + done.stderr
