"""Write the table of parameters:  python -m hftune.arguments.names --write-docs [docs/parameters.md]"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from hftune.arguments.names.explain import counterpart
from hftune.arguments.names.lists import TOOLS, tools_of
from hftune.arguments.names.row import ALIAS, NO_EFFECT, OFF, REFUSED, WORKS, Row
from hftune.arguments.names.table import TABLE, TOPICS
from hftune.visible import say

PAGE = Path("docs/parameters.md")
_HEAD = """# Parameters of other tools

Every parameter of ERNIEKit (with PaddleFormers' trainer beneath it), Megatron-SWIFT (with the base arguments of
ms-swift), MedicalGPT and fms-fsdp, and what transformers 5 has removed. Their command lines and YAML files can be given
as they are (`--config their.yaml`); `hftune explain NAME` shows a row.

| | |
|---|---|
| works | hftune has the name, with the same meaning |
| alias | it becomes the counterpart, values translated where they differ |
| no effect | accepted, with a notice that says why |
| refused | an error that says what to use instead; values that ask for what happens anyway (False, 0, none) pass |

The command line wins over a file, whatever the names, and an argument of hftune's own over one that was translated
beside it, which is said. This page is written by `python -m hftune.arguments.names --write-docs`.
"""


def page() -> str:
    """The page as Markdown."""
    sections = [_HEAD, _counts()]
    for title, rows in TOPICS.items():
        sections.append(_section(title, rows))
    rest = sorted({name for names in TOOLS.values() for name in names} - set(TABLE))
    same = [Row(name, "as in transformers, or when merging", WORKS, to=name) for name in rest]
    sections.append(_section("The same in transformers and in merging", same))
    return "\n".join(sections)


def _counts() -> str:
    lines = ["| tool | names | works | alias | no effect | refused |", "|---|---:|---:|---:|---:|---:|"]
    for tool, names in TOOLS.items():
        verdicts = [TABLE[name].verdict if name in TABLE else WORKS for name in names]
        counts = " | ".join(str(verdicts.count(verdict)) for verdict in (WORKS, ALIAS, NO_EFFECT, REFUSED))
        lines.append(f"| {tool} | {len(names)} | {counts} |")
    return "\n".join([*lines, ""])


def _section(title: str, rows: Iterable[Row]) -> str:
    lines = [f"## {title}", "", "| name | in | what it does | | here |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row.name.lower()):
        cells = (f"`{row.name}`", ", ".join(tools_of(row.name)), row.does, row.verdict, _here(row))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _here(row: Row) -> str:
    if row.verdict == WORKS:
        return ""
    if row.verdict == ALIAS:
        return counterpart(row)
    special = row.verdict == REFUSED and row.harmless not in ((), OFF)
    return row.because + (f" ({', '.join(value for value in row.harmless if value)} passes)" if special else "")


def main(argv: list[str]) -> None:
    """Print the page, or write it."""
    if argv[:1] != ["--write-docs"]:
        say(page())
        return
    target = Path(argv[1]) if len(argv) > 1 else PAGE
    target.write_text(page(), encoding="utf-8")
    say(f"{len(TABLE)} rows in {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
