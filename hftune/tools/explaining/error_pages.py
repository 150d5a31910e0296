"""The pages of errors by number, docs/errors/ in English and docs/zh/errors/ in Chinese: one for each room."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hftune.error_numbers import families, table
from hftune.tools.explaining.numbers import listed

_COMMANDS = "```bash\nhftune explain HF101\nhftune explain HF101 --language zh\n```"
_WRITTEN = "`python -m hftune.tools.explaining --write-docs`"


@dataclass(frozen=True)
class _Words:
    """What the pages of one language say; `folder` is where they are below docs/."""

    folder: str
    index: str
    about: str
    room: str
    about_room: str
    columns: str
    to_do: str
    written: str


_WORDS = {
    "en": _Words(
        folder="errors",
        index="Errors by number",
        about="What each number of an error means, its usual causes, and the way out. The first line of a message ends "
        "with the\nnumber. Without a browser, in English or Chinese:",
        room="HF{room}xx: {title}",
        about_room="What these errors mean, their usual causes, and the way out. Below each stand the messages that it "
        "may have: what\ndepends on the run is shown as `{{...}}`. All numbers: [errors by number](index.md).",
        columns="| number | error |",
        to_do="**To do.** ",
        written=f"Numbers keep their meaning from one release to the next. Written by {_WRITTEN} from\n"
        "`hftune/error_numbers.toml` and the messages in the source.",
    ),
    "zh": _Words(
        folder="zh/errors",
        index="按编号查报错",
        about="每个报错编号的含义、常见原因和处理办法。报错的第一行末尾有编号；不用浏览器也能查，中英文皆可：",
        room="HF{room}xx：{title}",
        about_room="这些报错的含义、常见原因和处理办法。每一节后面列出可能的报错原文，随运行而变的部分写作 `{{...}}`。"
        "全部编号见[按编号查报错](index.md)。",
        columns="| 编号 | 报错 |",
        to_do="**处理。**",
        written=f"编号在各版本之间含义不变。本页由 {_WRITTEN} 根据 `hftune/error_numbers.toml` 和源码中的报错生成。",
    ),
}


def error_pages() -> dict[str, str]:
    """Path below docs/ -> Markdown, of all pages in both languages."""
    rooms = table()["rooms"]
    pages = {}
    for language, words in _WORDS.items():
        pages[f"{words.folder}/index.md"] = _index(language, words)
        for room, row in rooms.items():
            pages[f"{words.folder}/{row['page']}.md"] = _page(room, language, words)
    return pages


def _numbers(room: str) -> list[str]:
    return [number for number in families() if number[2] == room]


def _index(language: str, words: _Words) -> str:
    parts = [f"# {words.index}", words.about, _COMMANDS]
    for room, row in table()["rooms"].items():
        lines = [words.columns, "| --- | --- |"]
        for number in _numbers(room):
            title = families()[number].texts[language].title
            lines.append(f"| [{number}]({row['page']}.md#{number.lower()}) | {title} |")
        parts += [f"## {words.room.format(room=room, title=row[language])}", "\n".join(lines)]
    return "\n\n".join([*parts, words.written]) + "\n"


def _page(room: str, language: str, words: _Words) -> str:
    numbers, title = _numbers(room), table()["rooms"][room][language]
    head = [f"# {words.room.format(room=room, title=title)}", words.about_room.format()]
    parts = [*head, f"```bash\nhftune explain {numbers[0]}\n```"]
    for number in numbers:
        text = families()[number].texts[language]
        # The heading's own anchor changes with its words; links from elsewhere need one that stays.
        parts += [f'<a id="{number.lower()}"></a>', f"## {number}: {text.title}", _linked(text.means)]
        parts += [f"{words.to_do}{_linked(text.do)}", "\n".join(["```text", *listed(number), "```"])]
    return "\n\n".join([*parts, words.written]) + "\n"


def _linked(text: str) -> str:
    """Pages that a text names, as links from a page of this folder."""
    return re.sub(r"`docs/(?:zh/)?([\w/]+\.md)`", r"[\1](../\1)", text)
