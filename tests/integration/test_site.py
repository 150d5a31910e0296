"""`make docs`, as it stands: both languages build with every link checked, and nothing comes from other hosts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import CHINESE, DOCS, ROOT

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.slow
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link(?![^>]*alternate))\b[^>]*?(?:src|srcset|href)=["']?([^"'\s>]+)"""
)
OUTSIDE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as the commands of `make docs` build it, elsewhere; mkdocs.yml has them fail at a dead link."""
    folder = tmp_path_factory.mktemp("pages") / "site"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"^\t(.* -m mkdocs build .*)$", makefile, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line.replace("$(BIN)/python", sys.executable))
        variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z0-9_]+=", word))
        out = folder / Path(variables.get("DOCS_SITE", "site")).relative_to("site")
        done = subprocess.run(
            [word for word in words if not re.match(r"[A-Z0-9_]+=", word)],
            cwd=ROOT,
            env={**os.environ, **variables, "DOCS_SITE": str(out)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there_in_both_languages(site: Path) -> None:
    for page in DOCS:
        uri = page.relative_to(CHINESE if page.is_relative_to(CHINESE) else ROOT / "docs").with_suffix(".html")
        for language, folder in (("en", site), ("zh", site / "zh")):
            assert f'<html lang="{language}"' in (folder / uri).read_text(encoding="utf-8"), uri


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loaded = {link for page in site.rglob("*.html") for link in LOADED.findall(page.read_text(encoding="utf-8"))}
    for style in site.rglob("*.css"):
        loaded |= {*re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')]+)", style.read_text(encoding="utf-8"))}
    assert len(loaded) > 5 and [link for link in loaded if OUTSIDE.match(link)] == []
