"""How hftune starts other programs: none of them runs a file because it lies in the working folder.

Python puts the working folder first on its path for `-m` and `-c`, and wherever PYTHONPATH has an empty entry; a
`yaml.py` of a downloaded folder would run. Everything that hftune starts goes through this file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess, Popen, TimeoutExpired
from typing import Any

from hftune.constants import SHIPPED

__all__ = ["DEVNULL", "PIPE", "ROOT", "STDOUT", "CompletedProcess", "Popen", "TimeoutExpired"]

ROOT = Path(__file__).resolve().parents[1]
"""The folder that holds this package."""


def python(*words: str) -> list[str]:
    """A command for this interpreter: `python("-m", "hftune.cli")`."""
    return [sys.executable, "-P", *words]


def script(name: str) -> str:
    """The path of one of hftune's own scripts, `run_sft.py`: never one of the working folder's."""
    return str(SHIPPED / name)


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for a program, and for whatever it starts in its turn: launchers, and the ranks below them.

    Args:
        given: Variables to begin with; left out: those of this process.
    """
    found = dict(os.environ if given is None else given)
    # The variable reaches what a launcher starts in its turn; `-P` stands on one command line only.
    found["PYTHONSAFEPATH"] = "1"
    found["PYTHONPATH"] = os.pathsep.join(_modules(found.get("PYTHONPATH", "")))
    # Programs by name (`python`, `deepspeed`) are those next to this interpreter, where it has them.
    found["PATH"] = os.pathsep.join(_programs(found.get("PATH") or os.defpath))
    return found


def _modules(search: str) -> list[str]:
    """hftune's own folder and the user's; an empty entry, which means the working folder, is left out.

    PYTHONPATH comes before Python's own library, so that installed packages are not named there.
    """
    # An installed hftune is found anyway; site-packages on PYTHONPATH would come before the standard library.
    own = [] if ROOT.name in ("site-packages", "dist-packages") else [str(ROOT)]
    here = os.path.realpath(os.getcwd())
    # "." is left out as well; the folder's whole path was meant.
    named = [entry for entry in search.split(os.pathsep) if os.path.isabs(entry) or os.path.realpath(entry) != here]
    return list(dict.fromkeys([*own, *map(os.path.abspath, filter(None, named))]))


def _programs(search: str) -> list[str]:
    own = str(Path(sys.executable).parent)
    return list(dict.fromkeys([own, *(entry for entry in search.split(os.pathsep) if os.path.isabs(entry))]))


def program(name: str) -> str | None:
    """Where a program is that is started by its name; one of the working folder's is none."""
    return shutil.which(name, path=environment()["PATH"])


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None, **given: Any) -> CompletedProcess[str]:
    """`subprocess.run`, apart from the working folder's files; text in and out."""
    # Left open, a program that asks a question would wait for the terminal of a run.
    given |= {} if "input" in given else {"stdin": DEVNULL}
    return subprocess.run(command, env=environment(env), text=True, **given)  # noqa: PLW1510  (the caller says)


def start(command: Sequence[str], *, env: Mapping[str, str] | None = None, **given: Any) -> Popen[Any]:
    """`subprocess.Popen`, likewise."""
    return Popen(command, env=environment(env), **given)
