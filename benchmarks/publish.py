"""Run a benchmark and put what it measured into docs/benchmarks.md, under its name.

python benchmarks/publish.py preprocess --tokenizer MODEL --data sharegpt.jsonl
python benchmarks/publish.py loader

The arguments behind the name are the benchmark's own. Its section is replaced; the others stay. The table alongside the
peers in README.md and README_zh.md is written again from the page: `python benchmarks/publish.py` alone does only that.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness import paste

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
END = "<!-- end of measured -->\n"
TOOLS = {
    "hftune": "hftune",
    "trl": "TRL",
    "llamafactory": "LLaMA-Factory",
    "ms_swift": "ms-swift",
    "medicalgpt": "MedicalGPT",
}


class Row(NamedTuple):
    """A row of the table in the READMEs.

    Args:
        section: Of docs/benchmarks.md.
        part: The line above the rows meant, where a section has several tables.
        column: Which number behind a tool's name.
        best: Of these figures.
        labels: In README.md and README_zh.md.
    """

    section: str
    part: str
    column: int
    best: Callable[..., float]
    labels: tuple[str, str]


ROWS = (
    Row("train", "unpacked:", 0, max, ("SFT, tokens/s", "SFT，token/秒")),
    Row("train", "unpacked:", 5, min, ("SFT, peak memory, MiB", "SFT，峰值内存，MiB")),
    Row("train", "packed:", 0, max, ("SFT packed, tokens/s", "SFT packing，token/秒")),
    Row("preference", "", 0, max, ("DPO, tokens/s", "DPO，token/秒")),
    Row("preference", "", 3, min, ("DPO, peak memory, MiB", "DPO，峰值内存，MiB")),
    Row("preprocess", "", 0, max, ("tokenising, records/s", "分词，记录/秒")),
    Row("first_step", "", 0, min, ("start to first step, s", "启动到第一步，秒")),
)
READMES = ("README.md", "README_zh.md")
HEADS = ("2 CPU cores", "2 个 CPU 核心")


def main() -> int:
    """Run, show and publish; the benchmark's exit code."""
    if len(sys.argv) == 1:
        write_readmes()
        return 0
    if not (ROOT / "benchmarks" / f"{sys.argv[1]}.py").is_file():
        print(__doc__)
        return 2
    name, flags = sys.argv[1], sys.argv[2:]
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *flags]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(finished.stdout, end="")
    lines = finished.stdout.rstrip().splitlines()
    if finished.returncode or not lines:
        return finished.returncode or 1
    result = json.loads(lines[-1])
    # Of folders and files of this machine only the last name, also where two are given as FOLDER:PYTHON.
    shown = [":".join(Path(part).name if "/" in part else part for part in flag.split(":")) for flag in flags]
    publish(name, section(name, shown, "\n".join(lines[:-1]), result))
    write_readmes()
    return 0


def section(name: str, flags: list[str], table: str, result: dict, *, here: bool = True) -> str:
    """One benchmark's part of the page; paths of the machine are left out. `here`: measured on this one."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    where = result["machine"] + (f", {memory:.0f} GiB of memory" if here else "")
    bars = [
        f"| {bar} | {_number(found['value'])} | {_number(found['bar'])} | {'yes' if found['holds'] else 'no'} |"
        for bar, found in result["bars"].items()
    ]
    held = "\n".join(["| bar | measured | wanted | holds |", "| --- | ---: | ---: | --- |", *bars]) if bars else ""
    asked = " ".join(["python", f"benchmarks/{name}.py", *flags])
    return f"## {name}\n\n`{asked}` on {where}:\n\n```\n{table}\n```\n\n{held}\n"


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def publish(name: str, text: str) -> None:
    """Put a section into the page, in the place of the one of that name."""
    page = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"(?m)^(?=## )", page.replace(END, ""))
    others = [part for part in parts[1:] if not part.startswith(f"## {name}\n")]
    sections = sorted([*(part.rstrip() + "\n" for part in others), text], key=str.casefold)
    PAGE.write_text("\n".join([parts[0].rstrip() + "\n", *sections, END]), encoding="utf-8")


def figures(page: str, row: Row) -> dict[str, str]:
    """Tool -> its figure as the page writes it; tools that were not measured are absent."""
    text = page.partition(f"\n## {row.section}\n")[2].partition("\n## ")[0]
    lines = text.splitlines()
    lines = lines[lines.index(row.part) + 1 :] if row.part else lines
    found: dict[str, str] = {}
    for words in (line.split() for line in lines):
        numbers = [word for word in words[1:] if re.fullmatch(r"\(?[\d.,]+\)?%?", word)]
        if words and words[0] in TOOLS and words[0] not in found and len(numbers) > row.column:
            found[words[0]] = numbers[row.column]
        elif words == ["packed:"]:
            break
    return found


def peers(page: str, language: int) -> str:
    """The table of a README: figures as they stand in the page, the best one bold.

    Args:
        page: Text of docs/benchmarks.md.
        language: 0 English, 1 Chinese.
    """
    lines = [f"| {HEADS[language]} | {' | '.join(TOOLS.values())} |", "| --- |" + " ---: |" * len(TOOLS)]
    for row in ROWS:
        found = figures(page, row)
        best = row.best(_value(figure) for figure in found.values())
        cells = [
            f"**{found[tool]}**" if _value(found.get(tool, "nan")) == best else found.get(tool, "-") for tool in TOOLS
        ]
        label = f"[{row.labels[language]}](docs/benchmarks.md#{row.section})"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _value(figure: str) -> float:
    return float(figure.replace(",", ""))


def write_readmes() -> None:
    """Put the table between the marks of both READMEs."""
    page = PAGE.read_text(encoding="utf-8")
    for language, name in enumerate(READMES):
        paste(ROOT / name, "peers", peers(page, language))


if __name__ == "__main__":
    sys.exit(main())
