"""The pages of the project as tests read them: their parts, and the commands on them."""

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
