"""What MkDocs does with these pages beyond its own: two languages from one navigation, links that lead out of docs/.

A build has one language (`DOCS_LANGUAGE`). In the Chinese one a page of docs/zh/ takes the place of the English page of
its name, and an English page that has no translation stays. Files of the repository that pages link to come along,
below repository/.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ZH = "zh/"
OUTSIDE = "repository/"
ENGLISH = "english:"
"""Before the uri of a page that a link from the Chinese site to the English one leads to, until its HTML is written."""
_FENCE = re.compile(r"^(`{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(\]\(|(?:src|href|srcset)=\")([^()\s\"]+)(?=[)\"])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation with its sections in the language of the build."""
    logging.getLogger("jieba").setLevel(logging.WARNING)  # it tells how long its dictionary took
    if config.theme["language"] == "zh":
        words = config.extra["chinese"]
        config.nav = [{words[title]: pages} for section in config.nav or [] for title, pages in section.items()]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """The pages of one language, and the files outside docs/ that they link to."""
    for file in [file for file in files if file.src_uri.startswith(ZH)]:
        files.remove(file)
        if config.theme["language"] == "zh":
            take_place(files, file.src_uri.removeprefix(ZH), DOCS / file.src_uri, config)
    todo = [Path(file.abs_src_path or "") for file in files.documentation_pages()]
    named = [page for section in config.nav or [] for pages in section.values() for page in pages]
    todo += [take_place(files, page, source(page), config) for page in named if page.startswith(OUTSIDE)]
    while todo:
        page = todo.pop()
        for path in targets(page):
            uri = uri_of(path)
            if uri.startswith(OUTSIDE) and files.get_file_from_path(uri) is None:
                found = take_place(files, uri, path, config)
                todo += [found] if found.suffix == ".md" else []
    return files


def take_place(files: Files, uri: str, path: Path, config: MkDocsConfig) -> Path:
    """Put a file of the disk where a uri is, in place of what is there; the file."""
    if (before := files.get_file_from_path(uri)) is not None:
        files.remove(before)
    level = InclusionLevel.NOT_IN_NAV if uri.startswith(OUTSIDE) else InclusionLevel.UNDEFINED
    files.append(File.generated(config, uri, abs_src_path=str(path), inclusion=level))
    return path


def source(uri: str) -> Path:
    """The English file behind a uri."""
    return ROOT / uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else DOCS / uri


def uri_of(path: Path) -> str:
    """What a file is called in the site; a translation as what it translates."""
    if not path.is_relative_to(DOCS):
        return OUTSIDE + path.relative_to(ROOT).as_posix()
    return path.relative_to(DOCS).as_posix().removeprefix(ZH)


def targets(page: Path) -> Iterator[Path]:
    """The files that a page links to."""
    for _, link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if (path := target(page, link)) is not None:
            yield path


def target(page: Path, link: str) -> Path | None:
    """The file of this repository that a link of a page leads to; None for addresses, and where there is none."""
    plain = link.partition("#")[0]
    path = Path(os.path.normpath(page.parent / plain))
    return path if plain and "://" not in link and path.is_relative_to(ROOT) and path.is_file() else None


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links that hold in the site; on disk a translation lies elsewhere than what it translates."""
    here = Path(page.file.abs_src_path or "")

    def rewritten(match: re.Match[str]) -> str:
        path = target(here, match[2])
        if path is None:
            return match[0]
        uri, _, anchor = uri_of(path), *match[2].partition("#")[1:]
        found = files.get_file_from_path(uri)
        translated = found is not None and Path(found.abs_src_path or "") != path
        if translated and here.is_relative_to(DOCS / ZH):
            # A Chinese page names the English one, for its tables.
            return f"{match[1]}{ENGLISH}{uri}" + (f"#{anchor}" if anchor else "")
        link = os.path.relpath(uri, os.path.dirname(page.file.src_uri) or ".")
        # An English page that stays names anchors of English pages, which their translations may not have.
        return match[1] + link + (f"#{anchor}" if anchor and not translated else "")

    # GitHub's tables want `a\\|b` for a bar in code; Python-Markdown's show the backslash.

    def bars(match: re.Match[str]) -> str:
        return match[0].replace("\\|", "|")

    return outside_fences(markdown, lambda text: _CODE.sub(bars, _LINK.sub(rewritten, text)))


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """The text with a change made everywhere but in fenced blocks."""
    parts, end = [], 0
    for block in _FENCE.finditer(markdown):
        parts += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(markdown[end:])])


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """The page with links to itself in the other language."""
    return with_languages(output, page.url, config)


def on_post_template(output_content: str, *, template_name: str, config: MkDocsConfig) -> str:
    """The page for what is not there, whose links lead to the beginning."""
    return with_languages(output_content, "", config)


def with_languages(output: str, url: str, config: Any) -> str:
    """The HTML with relative links in place of `language:en`, `language:zh` and `english:PAGE.md`.

    Args:
        url: Of the page, within the build of its language.
    """
    up = "../" * url.count("/")
    english = "../" if config.theme["language"] == "zh" else ""
    chinese = "" if config.theme["language"] == "zh" else ZH
    name = url or "index.html"
    links = {"language:en": f"{up}{english}{name}", "language:zh": f"{up}{chinese}{name}"}
    for placeholder, link in links.items():
        output = output.replace(f'"{placeholder}"', f'"{link}"')
    return re.sub(
        rf'"{ENGLISH}([^"#]+)\.md(#[^"]*)?"', lambda match: f'"{up}../{match[1]}.html{match[2] or ""}"', output
    )
