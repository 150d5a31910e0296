"""The site of the pages: its navigation has every page, and pages of two languages find each other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.documents import CHINESE, DOCS, ROOT, anchors

SLUGS = "tag:yaml.org,2002:python/object/apply:pymdownx.slugs.slugify"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, with its variables and functions as they stand."""


Loader.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node))
Loader.add_constructor(SLUGS, lambda loader, node: loader.construct_mapping(node, deep=True))
CONFIG: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
SECTIONS = {title: pages for section in CONFIG["nav"] for title, pages in section.items()}


def test_every_page_is_in_the_navigation_once() -> None:
    named = [page for pages in SECTIONS.values() for page in pages]
    english = [str(page.relative_to(ROOT / "docs")) for page in DOCS if not page.is_relative_to(CHINESE)]
    assert sorted(page for page in named if not page.startswith("repository/")) == sorted(english)
    assert all((ROOT / page.removeprefix("repository/")).is_file() for page in named if page not in english)


def test_every_section_has_a_chinese_title() -> None:
    assert list(CONFIG["extra"]["chinese"]) == list(SECTIONS)


def test_nothing_comes_from_other_hosts_by_configuration() -> None:
    assert CONFIG["theme"]["font"] is False and CONFIG["strict"] is True
    assert not {"extra_javascript", "extra_css", "repo_url", "site_url"} & {*CONFIG}


@pytest.fixture(scope="module")
def languages() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("languages", ROOT / "docs" / "site" / "languages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config(language: str) -> Any:
    return SimpleNamespace(theme={"language": language})


@pytest.mark.parametrize(
    ("language", "url", "english", "chinese"),
    [
        ("en", "data.html", "data.html", "zh/data.html"),
        ("zh", "data.html", "../data.html", "data.html"),
        ("en", "parameters/hftune.html", "../parameters/hftune.html", "../zh/parameters/hftune.html"),
        ("zh", "parameters/hftune.html", "../../parameters/hftune.html", "../parameters/hftune.html"),
        ("zh", "", "../index.html", "index.html"),
    ],
)
def test_a_page_leads_to_itself_in_the_other_language(
    languages: ModuleType, language: str, url: str, english: str, chinese: str
) -> None:
    html = '<a href="language:en">English</a><a href="language:zh">中文</a>'
    wanted = f'<a href="{english}">English</a><a href="{chinese}">中文</a>'
    assert languages.with_languages(html, url, config(language)) == wanted


def test_a_chinese_page_leads_to_english_tables(languages: ModuleType, rewritten: Any) -> None:
    link = rewritten("zh/a.md", "[x](../a.md#names)", {"a.md": "zh/a.md"})
    assert link == "[x](english:a.md#names)"
    html = '<a href="english:parameters/x.md#names">x</a>'
    assert languages.with_languages(html, "parameters/x.html", config("zh")) == (
        '<a href="../../parameters/x.html#names">x</a>'
    )


def test_what_links_lead_to(languages: ModuleType) -> None:
    page = CHINESE / "data.md"
    assert languages.target(page, "../pictures/stages.svg") == ROOT / "docs" / "pictures" / "stages.svg"
    assert languages.target(page, "../../examples/sft.yaml#x") == ROOT / "examples" / "sft.yaml"
    for nowhere in ("https://x.y/z.md", "#anchor", "../../../x.md", "missing.md", "../../examples"):
        assert languages.target(page, nowhere) is None
    uris = {"docs/zh/data.md": "data.md", "docs/data.md": "data.md", "examples/a.sh": "repository/examples/a.sh"}
    assert {path: languages.uri_of(ROOT / path) for path in uris} == uris


@pytest.fixture
def rewritten(languages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Rewrites the text of a page of a repository made up; `pages` are the files of the build, by uri."""
    (docs := tmp_path / "docs").mkdir()
    for name in ("a.md", "zh/a.md", "zh/b.md", "parameters/x.md", "pictures/p.svg", "../examples/run.sh"):
        (docs / name).parent.mkdir(exist_ok=True, parents=True)
        (docs / name).write_text("# T\n")
    monkeypatch.setattr(languages, "ROOT", tmp_path)
    monkeypatch.setattr(languages, "DOCS", docs)

    def rewrite(page: str, text: str, pages: dict[str, str]) -> str:
        files = {uri: SimpleNamespace(abs_src_path=str(docs / path)) for uri, path in pages.items()}
        uri = page.removeprefix("zh/")
        shown = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(docs / page), src_uri=uri))
        found = SimpleNamespace(get_file_from_path=files.get)
        return languages.on_page_markdown(text, page=shown, config=config("zh"), files=found)

    return rewrite


def test_links_of_a_translation_hold_in_the_site(rewritten: Any) -> None:
    build = {"a.md": "zh/a.md", "b.md": "zh/b.md", "parameters/x.md": "parameters/x.md"}
    text = (
        "[b](b.md#乙) ![p](../pictures/p.svg) [x](../parameters/x.md#y) [run](../../examples/run.sh) [web](https://a.b)"
    )
    wanted = (
        "[b](b.md#乙) ![p](pictures/p.svg) [x](parameters/x.md#y) [run](repository/examples/run.sh) [web](https://a.b)"
    )
    assert rewritten("zh/a.md", text, build) == wanted


def test_an_english_page_among_chinese_ones_names_none_of_their_anchors(rewritten: Any) -> None:
    build = {"a.md": "zh/a.md", "parameters/x.md": "parameters/x.md"}
    assert rewritten("parameters/x.md", "[a](../a.md#english)", build) == "[a](../a.md)"
    assert rewritten("parameters/x.md", "[a](../a.md#english)", build | {"a.md": "a.md"}) == "[a](../a.md#english)"


def test_links_in_fenced_blocks_stay(rewritten: Any) -> None:
    text = "```\n[p](../pictures/p.svg)\n```\n[p](../pictures/p.svg)\n"
    assert rewritten("zh/a.md", text, {}) == "```\n[p](../pictures/p.svg)\n```\n[p](pictures/p.svg)\n"


def test_a_bar_in_code_is_shown_without_its_backslash(rewritten: Any) -> None:
    assert rewritten("zh/a.md", "| `a\\|b` \\| |\n```\na\\|b\n```\n", {}) == "| `a|b` \\| |\n```\na\\|b\n```\n"


def test_anchors_of_the_site_are_those_of_github() -> None:
    slugs = pytest.importorskip("pymdownx.slugs")
    slugify = slugs.slugify(**CONFIG["markdown_extensions"][-1]["toc"]["slugify"]["kwds"])
    for title in (
        "What is trained?",
        "--defaults medicalgpt",
        "思考，以及模板的参数",
        "`hftune.json`: a file",
        "A & B",
    ):
        assert {slugify(title.replace("`", ""), "-")} == anchors(f"# {title}\n"), title
