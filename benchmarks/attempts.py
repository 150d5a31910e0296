"""How many attempts at harm the tests make, by file, and what the fault injection saw.

python benchmarks/attempts.py                 counts, as a table
python benchmarks/attempts.py --write-docs    the tables go into docs/security.md and docs/reliability.md
python -m pytest tests/faults/test_injection.py -m slow -s >LOG; python benchmarks/attempts.py --injection-log LOG ...
python -m pytest tests/faults/test_interrupts.py -m slow -k random -s >LOG; ... --interrupts-log LOG ...
python -m pytest tests/faults/test_quiet_terminal.py -m slow -s >LOG; ... --lines-log LOG ...
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {"tests/security": "docs/security.md", "tests/faults": "docs/reliability.md"}
_INTERRUPTS = re.compile(r"INTERRUPTS (\w+) ([\w ]+): (\{.*\})")
_LINES = re.compile(r"LINES (\w+) ([\w ]+): (\d+)")
LEFT = ("checkpoint", "untouched", "complete")
_TRIED = re.compile(r"^\| (\w+) \| ([a-z ]+) \| \d+ \| (\d+) \| (\d+) \| (\d+) \|$", re.M)
_FAULT = re.compile(r"FAULTS (.+?) \| (.+?) \| (free|old|interrupted) \| (\d+) \| (\d+) \| \[(.*)\](?: \| (\d+/\d+))?")


def main() -> None:
    """Collect, print, and put into the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-docs", action="store_true", help="put the tables into the pages")
    parser.add_argument("--injection-log", help="what the slow injection tests printed (-s)")
    parser.add_argument("--interrupts-log", help="what tests/faults/test_interrupts.py printed (-s) of random moments")
    parser.add_argument("--lines-log", help="what tests/faults/test_quiet_terminal.py printed (-s)")
    parser.add_argument("--quick", action="store_true", help="as without: it takes a minute")
    options = parser.parse_args()
    figures = {}
    for folder, page in PAGES.items():
        quick, every = collected(folder, "not slow and not gpu"), collected(folder, "not gpu")
        table = attempts_table(quick, every)
        figures[folder] = {"quick": sum(quick.values()), "all": sum(every.values())}
        print(f"{folder}\n{table}\n")
        if options.write_docs:
            paste(ROOT / page, "attempts", table)
    reliability = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    logs = {"injection": (options.injection_log, functools.partial(injection_table, reliability))}
    logs["interrupts"] = (options.interrupts_log, functools.partial(interrupts_table, reliability))
    logs["lines"] = (options.lines_log, lines_table)
    for name, (log, table_of) in logs.items():
        if log:
            table = table_of(Path(log).read_text(encoding="utf-8", errors="replace"))
            print(table)
            if options.write_docs:
                paste(ROOT / "docs/reliability.md", name, table)
    total = sum(found["quick"] for found in figures.values())
    bars = {"attempts in make test": {"value": total, "bar": 400, "holds": total >= 400}}
    print(json.dumps({"benchmark": "attempts", "figures": figures, "bars": bars}))


def collected(folder: str, marks: str) -> Counter[str]:
    """Number of tests by file, as pytest collects them."""
    asked = [sys.executable, "-m", "pytest", folder, "-m", marks, "--collect-only", "-q", "-p", "no:cacheprovider"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return Counter(line.partition("::")[0] for line in said.splitlines() if "::" in line)


def attempts_table(quick: Counter[str], every: Counter[str]) -> str:
    """Markdown: a row a file."""
    rows = [f"| `{name}` | {topic(name)} | {quick[name]:,} | {every[name]:,} |" for name in sorted(every)]
    rows.append(f"| all | | {sum(quick.values()):,} | {sum(every.values()):,} |")
    return "\n".join(["| file | what | in `make test` | with the slow ones |", "| --- | --- | ---: | ---: |", *rows])


def topic(name: str) -> str:
    """The first line of a test file's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / name).read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0].replace("|", "\\|") if text else ""


def injection_table(page: str, log: str) -> str:
    """Markdown: for each command, at how many of its calls each fault was tried, and what was at the target then.

    Calls are those of a run with a free target and of one over an old result together. Cells of the log replace
    those of the page, fault by fault: all of them take hours. A cell that was run again counts once, with its last
    figures; shares of one (`FAULTS_SHARE`) are added up.
    """
    rows, faults = _injected(page)
    cells: dict[str, dict[tuple[str, str], dict[str, list[str]]]] = {}
    for name, fault, start, *found, share in _FAULT.findall(log):
        known = cells.setdefault(name, {}).setdefault((fault, start), {})
        # Shares of another division are of another time.
        if any(other.partition("/")[2] != share.partition("/")[2] for other in known):
            known.clear()
        known[share] = found
        faults = [*faults, *({fault} - {*faults})]
    for name, own in cells.items():
        row = rows.setdefault(name, {"left": ""})
        for one in {fault for fault, _ in own}:
            row[one] = _tried([found for (fault, _), found in own.items() if fault == one])
        seen = [text for shares in own.values() for *_, found in shares.values() for text in found.split(", ")]
        row["left"] = ", ".join(sorted({*row["left"].split(", "), *(text.strip("'") for text in seen)} - {""}))
    total = sum(_points(row.get(fault, "")) for row in rows.values() for fault in faults)
    head = ["| command |", *(f" {fault} |" for fault in faults), " left at the target |"]
    line = ["| --- |", *(" ---: |" for _ in faults), " --- |"]
    body = [
        f"| {name} | {' | '.join(row.get(fault, '') for fault in faults)} | {row['left']} |"
        for name, row in sorted(rows.items())
    ]
    return "\n".join(["".join(head), "".join(line), *body, f"| all: {total:,} faults |{' |' * (len(faults) + 1)}"])


def _injected(page: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The rows of the page's table by command, and its faults."""
    found = re.search(r"<!-- injection: [^\n]*-->\n(.*?)\n<!-- end of injection -->", page, re.DOTALL)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()] if found else []
    if not lines:
        return {}, []
    (_, *faults, _), _, *rows, _ = lines
    return {name: dict(zip([*faults, "left"], cells, strict=True)) for name, *cells in rows}, faults


def interrupts_table(page: str, log: str) -> str:
    """Markdown: a row a stage and launcher, how many moments were tried, and how many left what.

    The log's are added to those of the page: they take hours, and are tried a few at a time.
    """
    cells: dict[tuple[str, str], Counter[str]] = {}
    for stage, launcher, *left in _TRIED.findall(page):
        cells[stage, launcher] = Counter(dict(zip(LEFT, map(int, left), strict=True)))
    for stage, launcher, found in _INTERRUPTS.findall(log):
        cells.setdefault((stage, launcher), Counter()).update(ast.literal_eval(found))
    rows = [
        f"| {stage} | {launcher} | {found.total()} | {' | '.join(str(found[state]) for state in LEFT)} |"
        for (stage, launcher), found in sorted(cells.items())
    ]
    head = ["| stage | launcher | moments | left: a checkpoint | nothing yet | the finished result |"]
    total = sum(found.total() for found in cells.values())
    return "\n".join([*head, "| --- | --- | ---: | ---: | ---: | ---: |", *rows, f"| all | | {total:,} | | | |"])


def lines_table(log: str) -> str:
    """Markdown: a row a stage, how many lines it leaves at a terminal under each launcher."""
    found = {(stage, launcher): lines for stage, launcher, lines in _LINES.findall(log)}
    stages, launchers = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    rows = [[stage, *(found.get((stage, launcher), "") for launcher in launchers)] for stage in stages]
    head = [["stage", *launchers], ["---", *("---:" for _ in launchers)]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])


def _tried(starts: list[dict[str, list[str]]]) -> str:
    """ "125 of 125": the calls that were tried, and all calls, over all starts."""
    calls = sum(max(int(found[0]) for found in shares.values()) for shares in starts)
    points = sum(int(found[1]) for shares in starts for found in shares.values())
    return f"{points:,} of {calls:,}"


def _points(cell: str) -> int:
    """The first number of "1,250 of 1,300"; 0 for an empty cell."""
    return int(cell.partition(" ")[0].replace(",", "") or 0)


def paste(page: Path, name: str, table: str) -> None:
    """Put a table between its two comments."""
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    assert pattern.search(text), f"{page} has no place for {name}"
    page.write_text(pattern.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
