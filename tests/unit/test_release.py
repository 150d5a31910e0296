"""`make release`: the version, the changelog and the tag, or nothing at all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the script, and a `make` that notes the version which it was to build."""
    root = tmp_path / "repository"
    (root / "hftune").mkdir(parents=True)
    (root / "hftune" / "__init__.py").write_text('"""Words."""\n\n__version__ = "0.1.0"\n')
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- A change.\n")
    shutil.copytree(ROOT / ".ci", root / ".ci")
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text(
        '#!/bin/sh\ngrep version hftune/__init__.py > "$NOTE" && [ -z "$BROKEN" ] && [ "$*" = "dist try" ]\n'
    )
    make.chmod(0o755)
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        git(root, *words)
    return root


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    return subprocess.run(["git", *who, *words], cwd=root, capture_output=True, text=True, check=True).stdout


def release(root: Path, version: str, **variables: str) -> tuple[int, str]:
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = os.pathsep.join([str(root.parent / "bin"), os.environ["PATH"]])
    env = {**os.environ, **names, "PATH": path, "NOTE": str(root.parent / "note"), "BROKEN": "", **variables}
    done = subprocess.run([str(root / ".ci" / "release"), version], env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_release(repository: Path) -> None:
    code, said = release(repository, "0.2.0")
    assert code == 0 and "twine upload" in said, said
    assert (repository.parent / "note").read_text() == '__version__ = "0.2.0"\n', "what was built"
    assert git(repository, "tag") == "v0.2.0\n" and git(repository, "status", "--porcelain") == ""
    changes = (repository / "CHANGELOG.md").read_text()
    assert re.search(r"## Unreleased\n\n## 0\.2\.0 \(\d{4}-\d\d-\d\d\)\n\n- A change", changes)
    code, said = release(repository, "0.2.0")
    assert code == 2 and "released before" in said


@pytest.mark.parametrize("version", ["", "1", "v0.2.0", "0.2", "0.2.0; rm x"])
def test_a_version_is_three_numbers(repository: Path, version: str) -> None:
    code, said = release(repository, version)
    assert code == 2 and "three numbers" in said and git(repository, "status", "--porcelain") == ""


def test_a_build_that_fails_leaves_everything_as_it_was(repository: Path) -> None:
    code, _ = release(repository, "0.2.0", BROKEN="1")
    assert code != 0 and git(repository, "tag") == "" and git(repository, "status", "--porcelain") == ""
    assert "0.1.0" in (repository / "hftune" / "__init__.py").read_text()


def test_what_is_not_committed_is_not_released(repository: Path) -> None:
    (repository / "new").write_text("")
    code, said = release(repository, "0.2.0")
    assert code == 2 and "commit or stash" in said and (repository / "new").is_file()
