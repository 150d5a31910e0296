"""Every page exists in English and in Chinese, and both show the same commands, records and outputs."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pytest

from tests.documents import CHINESE, DOCS, ROOT, blocks, chinese_of, headings, tables, written_by_hand

ENGLISH = [page for page in DOCS if not page.is_relative_to(CHINESE)]
MISSING: set[str] = set()
"""Pages that are not translated yet. A name leaves this list with its page."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs")) if page.parent != ROOT else page.name


TRANSLATED = [*ENGLISH, ROOT / "README.md"]
PAIRS = [page for page in TRANSLATED if chinese_of(page).is_file()]


def test_every_page_has_its_page_in_the_other_language() -> None:
    assert {name_of(page) for page in TRANSLATED if page not in PAIRS} == MISSING
    english = {str(page.relative_to(ROOT / "docs")) for page in ENGLISH}
    assert {str(page.relative_to(CHINESE)) for page in DOCS if page.is_relative_to(CHINESE)} - english == set()


def differences(english: str, chinese: str) -> list[str]:
    """What a page lacks or has otherwise than its page in the other language, apart from what programs write."""
    ours, theirs = (blocks(written_by_hand(text)) for text in (english, chinese))
    found = []
    for number, (one, other) in enumerate(zip_longest(ours, theirs), start=1):
        if one is None or other is None:
            found.append(f"block {number} is in one language only: {(one or other).text[:60]!r}")
        elif (one.language, one.text) != (other.language, other.text):
            lines = zip_longest(one.text.splitlines(), other.text.splitlines())
            found.append(
                f"block {number}: {next(((a, b) for a, b in lines if a != b), (one.language, other.language))}"
            )
    for name, parts in (("headings", headings), ("rows of tables", tables)):
        one, other = parts(written_by_hand(english)), parts(written_by_hand(chinese))
        found += [] if one == other else [f"{name}: {one} and {other}"]
    return found


@pytest.mark.parametrize("page", PAIRS, ids=name_of)
def test_both_languages_show_the_same(page: Path) -> None:
    english, chinese = (file.read_text(encoding="utf-8") for file in (page, chinese_of(page)))
    assert differences(english, chinese) == []


@pytest.mark.parametrize("page", PAIRS, ids=name_of)
def test_a_chinese_page_is_chinese(page: Path) -> None:
    """Most of its headings are: half a page in English is no translation."""
    lines = chinese_of(page).read_text(encoding="utf-8").splitlines()
    titles = [line for line in lines if line.startswith("#")]
    assert any("\u4e00" <= letter <= "\u9fff" for line in lines[:6] for letter in line), lines[:6]
    assert titles


@pytest.mark.parametrize(
    ("chinese", "said"),
    [
        ("# 甲\n\n```bash\nhftune doctor\n```\n\n## 乙\n", []),
        ("# 甲\n\n```bash\nhftune doctor  # 看\n```\n\n## 乙\n", ["block 1"]),
        ("# 甲\n\n```\nhftune doctor\n```\n\n## 乙\n", ["block 1"]),
        ("# 甲\n\n## 乙\n", ["block 1 is in one language only"]),
        ("# 甲\n\n```bash\nhftune doctor\n```\n\n### 乙\n", ["headings"]),
        ("# 甲\n\n```bash\nhftune doctor\n```\n\n## 乙\n\n| a |\n|---|\n| b |\n", ["rows of tables"]),
        ("# 甲\n\n```bash\nhftune doctor\n```\n\n```bash\nls\n```\n", ["block 2 is in one language only", "headings"]),
    ],
)
def test_what_may_differ(chinese: str, said: list[str]) -> None:
    english = "# A\n\n```bash\nhftune doctor\n```\n\n## B\n\n<!-- x -->\n```\nfigures\n```\n| a |\n<!-- /x -->\n"
    found = differences(english, chinese)
    assert [start in text for start, text in zip_longest(said, found, fillvalue="")] == [True] * len(said)
