"""`make docs`, as it stands: both languages build, nothing comes from other hosts, and every link leads somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.documents import CHINESE, DOCS, ROOT

pytest.importorskip("mkdocs")
LOADED = {"script": "src", "img": "src", "source": "srcset", "iframe": "src", "video": "src", "audio": "src"}
"""Element -> the attribute that has a browser fetch something; of `link` it depends on `rel`."""
PAGE_OF_ERRORS = "404.html"


class Links(HTMLParser):
    """What a page loads, where it leads, and what may be named in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "link" and given.get("rel") != "alternate":
            self.loads.append(given["href"])
        elif tag in ("a", "link"):
            self.leads += [given["href"]] if "href" in given else []
        elif tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as the commands of `make docs` build it, elsewhere."""
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


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {file: Links(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}


def test_every_page_is_there_in_both_languages(site: Path, pages: dict[Path, Links]) -> None:
    for page in DOCS:
        uri = page.relative_to(CHINESE if page.is_relative_to(CHINESE) else ROOT / "docs").with_suffix(".html")
        for language, folder in (("en", site), ("zh", site / "zh")):
            text = (folder / uri).read_text(encoding="utf-8")
            assert f'<html lang="{language}"' in text and "language:" not in text and "english:" not in text, uri


def test_a_chinese_page_has_chinese_text_and_words_of_the_theme(site: Path) -> None:
    text = (site / "zh" / "data.html").read_text(encoding="utf-8")
    title = (CHINESE / "data.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    assert f"<title>{title} - hftune</title>" in text
    assert "搜索" in text and "故障排查" in text and "Troubleshooting" not in text


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[Path, Links]) -> None:
    outside = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
    loaded = {link for found in pages.values() for link in found.loads}
    assert loaded and [link for link in loaded if outside.match(link)] == []
    for style in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')]+)", style.read_text(encoding="utf-8"))
        assert [link for link in found if outside.match(link)] == [], style


def test_every_link_leads_somewhere(pages: dict[Path, Links]) -> None:
    assert sorted(set(dead(pages))) == []


def dead(pages: dict[Path, Links]) -> Iterator[str]:
    """Links within the site that lead to no file, or to no place in one."""
    for page, found in pages.items():
        # The page of errors is shown at any address: its links begin at the root of the server.
        for link in [] if page.name == PAGE_OF_ERRORS else [*found.leads, *found.loads]:
            path, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            file = (page.parent / path).resolve() if path else page
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].names):
                yield f"{page.name}: {link}"


def test_what_is_dead_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.html").touch()
    text = (
        '<a href="b.html#x">b</a><a href="c.html">c</a><a href="#y">y</a><a href="https://a.b">w</a><img src="p.png">'
    )
    pages = {tmp_path / "a.html": Links(text), tmp_path / "b.html": Links('<p id="x">')}
    assert [*dead(pages)] == ["a.html: c.html", "a.html: #y", "a.html: p.png"]


@pytest.mark.parametrize(
    ("language", "word", "page"),
    [("", "gradient", "deepspeed.html"), ("zh", "\u200b显存\u200b", "choosing.html"), ("zh", "lora", "adapters.html")],
)
def test_the_search_knows_words(site: Path, language: str, word: str, page: str) -> None:
    """Of Chinese pages as jieba has cut them: U+200B separates words."""
    index = json.loads((site / language / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert "\u200b" in index["config"]["separator"] or "\\u200b" in index["config"]["separator"]
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if word in entry["text"].lower()}
    assert page in found
