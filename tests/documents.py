"""The pages of the project as tests read them: their parts, the commands on them and where their links lead."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, *sorted(ROOT.glob("*.md"))]
CHINESE = ROOT / "docs" / "zh"
SHELL = ("bash", "sh", "", "diff")
_FENCE = re.compile(r"^(`{3,})(\w*)\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        language: What stands behind its opening fence.
        line: Number of its first line within the page, from 1.
        text: What is in it.
    """

    language: str
    line: int
    text: str


def chinese_of(page: Path) -> Path:
    """The Chinese page of an English one, whether it exists or not."""
    if page.parent == ROOT:
        return page.with_name(f"{page.stem}_zh.md")
    return CHINESE / page.relative_to(ROOT / "docs")


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    fence, language, start, lines = "", "", 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _FENCE.match(line)
        if not fence and match:
            fence, language, start, lines = match[1], match[2], number + 1, []
        elif fence and line.rstrip() == fence:
            found.append(Block(language, start, "\n".join(lines)))
            fence = ""
        elif fence:
            lines.append(line)
    assert not fence, f"the block that opens in line {start - 1} is not closed"
    return found


def written_by_hand(text: str) -> str:
    """The page without what programs write into it, between `<!-- x -->` and `<!-- /x -->` or `<!-- end of x -->`."""
    return re.sub(r"^<!-- (?!/|end\b).*?^<!-- (?:/|end\b).*?-->$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(text: str) -> list[int]:
    """The levels of the headings of a page, in order."""
    found = (re.match(r"(#{1,6}) ", line) for line in prose(text).splitlines())
    return [len(match[1]) for match in found if match]


def tables(text: str) -> list[int]:
    """The numbers of rows of the tables of a page, in order."""
    found = [0]
    for line in prose(text).splitlines():
        if line.startswith("|"):
            found[-1] += 1
        elif found[-1]:
            found.append(0)
    return [rows for rows in found if rows]


def patches(text: str) -> list[str]:
    """The diffs of a page that `git apply` takes; other diffs show commands that change."""
    found = [block.text + "\n" for block in blocks(text) if block.language == "diff"]
    return [text for text in found if text.startswith("diff --git ")]


def prose(text: str) -> str:
    """The page without its fenced blocks, line by line."""
    kept, fence = [], ""
    for line in text.splitlines():
        match = re.match(r"^(`{3,})", line)
        if match and not fence:
            fence = match[1]
        elif fence and line.rstrip() == fence:
            fence = ""
        elif not fence:
            kept.append(line)
    return "\n".join(kept)


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block as words; of a diff its new side; without comments and variables in front."""
    text = block.text
    if block.language == "diff":
        text = "\n".join(line[1:].lstrip() for line in text.splitlines() if not line.startswith("-"))
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        # Apart from words: `&&`, `|` and their like, behind which another command begins.
        tokens = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        tokens.whitespace_split = True
        for words in _split([*tokens]):
            while words and re.match(r"^[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                found.append(words)
    return found


def _split(tokens: list[str]) -> list[list[str]]:
    """The commands of a line; files that they are redirected to are left out."""
    found: list[list[str]] = [[]]
    left = iter(tokens)
    for token in left:
        if re.fullmatch(r"[&|;]+", token):
            found.append([])
        elif re.fullmatch(r"[<>&]+", token):
            next(left, None)
        else:
            found[-1].append(token)
    return found


def anchors(text: str) -> set[str]:
    """What `#...` may name in a page: what GitHub makes from headings, and `<a id="...">`."""
    titles = [line.lstrip("#").strip() for line in prose(text).splitlines() if re.match(r"#{1,6} ", line)]
    named = re.findall(r'<a id="([\w-]+)">', prose(text))
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-") for title in titles} | {*named}


def links(text: str) -> list[str]:
    """Where links and pictures of a page lead, web addresses apart."""
    plain = re.sub(r"`[^`\n]*`", "`", prose(text))
    found = re.findall(r"\]\(([^()\s]+)\)", plain) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", plain)
    return [link for link in found if "://" not in link and not link.startswith("mailto:")]
